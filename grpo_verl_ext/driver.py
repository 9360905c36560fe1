"""Check and prepare a training before it starts, if it uses this package; leave every other as it is.

Functions of verl are patched in every process that imports them. verl has no hook there, and a Hydra
callback would run only with the presets of this package, with its exceptions turned into warnings:

- ``verl.utils.config.validate_config``, which verl's ``main_ppo`` calls in the driver before it starts Ray;
- ``verl.trainer.main_ppo.run_ppo``, which the drivers of one-step-off and fully async training call. These
  validate their configuration inside Ray, or never.

For a training that uses the package the driver chooses the platform, checks the configuration, and writes the
environment variables of the training's processes into Ray's runtime environment. With
``GRPO_VERL_EXT_CHECK=1`` it reports on the training and ends the process.
"""

import functools
import json
import os
import sys
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict
from wrapt import register_post_import_hook

from grpo_verl_ext import __version__
from grpo_verl_ext.utils.console import print_any_character, say
from grpo_verl_ext.utils.errors import SettingError, Severity
from grpo_verl_ext.utils.keys import PATCHES_VARIABLE, RUNTIME_ENVIRONMENT
from grpo_verl_ext.utils.which_ray import WhichRay, which_ray

_CHECK_VARIABLE = "GRPO_VERL_EXT_CHECK"
"""Environment variable with which the driver reports on its training and ends; empty and ``0`` are none."""


def register_checks() -> None:
    """Have verl's driver check a training before it starts."""
    from grpo_verl_ext.verl_plugin import patches

    unchecked = "no setting of grpo_verl_ext is checked before the training"
    for name, module in (("validate_config", "verl.utils.config"), ("run_ppo", "verl.trainer.main_ppo")):
        patch = functools.partial(_patch, name)
        apply = functools.partial(patches.apply_or_warn, patch, "driver", unchecked)
        register_post_import_hook(apply, module)


def _patch(name: str, module: Any) -> None:
    """Make verl's function of this name prepare a training first."""
    original = getattr(module, name)

    @functools.wraps(original)
    def prepared(config: DictConfig, *args: Any, **kwargs: Any) -> None:
        from grpo_verl_ext.verl_plugin import usage

        runner = kwargs.get("task_runner_class", *args[:1]) if name == "run_ppo" else usage.RUNNER.get()
        token = usage.RUNNER.set(runner)
        try:
            _prepare_training(config)
            original(config, *args, **kwargs)
        finally:
            usage.RUNNER.reset(token)

    setattr(module, name, prepared)


def _prepare_training(config: DictConfig) -> None:
    """Prepare a training once if it uses the package; where only a report is asked for, print it and exit."""
    from grpo_verl_ext.verl_plugin import usage

    if (asked := os.environ.get(_CHECK_VARIABLE, "")) not in ("", "0"):
        print_any_character()
        print(f"grpo_verl_ext {__version__}: checked, not trained ({_CHECK_VARIABLE}={asked})", flush=True)
        try:
            from grpo_verl_ext.preflight import report

            _choose_platform(config)
            status = report.report(config)
        except (Exception, SystemExit) as error:  # noqa: BLE001  # nobody asked for a training
            print(f"the check itself failed, {type(error).__name__}: {error}")
            status = 2
        sys.exit(status)
    prepared = f"{RUNTIME_ENVIRONMENT}.{PATCHES_VARIABLE}"  # which `_set_variables` sets
    if OmegaConf.select(config, prepared) is None and any(usage.used_settings(config)):
        import ray
        from hydra.core.hydra_config import HydraConfig
        from hydra.types import RunMode

        # The trainings of Hydra's ``--multirun`` have one driver process. The Ray of the last one has its
        # actors, which still hold the accelerators, and its environment variables.
        this = HydraConfig.get() if HydraConfig.initialized() else None
        if this and this.mode is RunMode.MULTIRUN and this.job.num > 0:
            ray.shutdown()
        _choose_platform(config)
        _refuse_or_warn(config)
        # A task's folder is the driver's that was checked: a worker of a Ray that runs already may have
        # another home and another cache.
        if (task := usage.own_task(config)) is not None:
            OmegaConf.resolve(task)
        _set_variables(config)


def _choose_platform(config: DictConfig) -> None:
    """Install the CPU platform in this process if the configuration asks for it, and decide on the Ray.

    verl's ``main`` has set ``trainer.device`` by then to an accelerator, even if there is none, because it
    asked its platforms before the configuration was composed.
    """
    from grpo_verl_ext.verl_plugin import cpu, usage
    from grpo_verl_ext.verl_plugin.cpu import PLATFORM_VARIABLE, chosen_platform

    if OmegaConf.select(config, usage.PLATFORM_KEY) == "cpu" and chosen_platform() in ("", "cpu"):
        os.environ[PLATFORM_VARIABLE] = "cpu"
        cpu.install_platform()
        if OmegaConf.is_dict(config.trainer):  # else the check `types` refuses it
            config.trainer.device = "cpu"
        say(_settle_ray(config).words)


def _settle_ray(config: DictConfig) -> WhichRay:
    """Fit ``ray_kwargs.ray_init`` of a training with ``+platform=cpu`` to the Ray that it uses."""
    from grpo_verl_ext.verl_plugin.cpu import forked_worker

    section = config.ray_kwargs.ray_init
    ray = which_ray(address=section.get("address"))
    with open_dict(section):
        if ray.is_own:
            section.address, starts_workers = ray.address, "runtime_env.py_executable"
            if not OmegaConf.select(section, starts_workers):
                OmegaConf.update(section, starts_workers, forked_worker.COMMAND)
        else:
            # The preset gives them a Ray of its own; ``ray.init`` refuses them where it joins another.
            for name in ("num_cpus", "num_gpus", "_system_config"):
                section.pop(name, None)
    return ray


def _refuse_or_warn(config: DictConfig) -> None:
    """Print the warnings and exit with the first error, or note in its folder what the training is."""
    from grpo_verl_ext import preflight
    from grpo_verl_ext.preflight.environment import note_training

    for found in preflight.findings(config):
        said = f"{found.problem} (to skip this check: '++algorithm.grpo_ext.silence=[{found.check}]')"
        if found.severity is Severity.ERROR:
            sys.exit(f"grpo_verl_ext: {said}")
        say(f"{found.severity.value}: {said}")
    note_training(config)


def _set_variables(config: DictConfig) -> None:
    """Write platform and patches into Ray's runtime environment, which verl passes to ``ray.init``."""
    from ray._private.runtime_env.constants import RAY_JOB_CONFIG_JSON_ENV_VAR

    from grpo_verl_ext.verl_plugin import usage
    from grpo_verl_ext.verl_plugin.config import Options
    from grpo_verl_ext.verl_plugin.cpu import PLATFORM_VARIABLE

    try:
        options = Options.from_config(config.algorithm)
    except SettingError as error:
        sys.exit(f"grpo_verl_ext: {error}")  # where the check that reports it is silenced
    needed = ["rewards", "reports", *["lost_parts", "engine_death"] * options.watch]
    needed += ["own_queue"] * options.own_queue
    variables = {PLATFORM_VARIABLE: "cpu"} if usage.asks_for_cpu(config) else {}
    variables[PATCHES_VARIABLE] = ",".join(needed)
    job = json.loads(os.environ.get(RAY_JOB_CONFIG_JSON_ENV_VAR, "{}"))
    # Ray refuses a variable that the driver's own Ray job has set.
    set_by_job = (job.get("runtime_env") or {}).get("env_vars") or {}
    with open_dict(config):
        for name, value in variables.items():
            key = f"{RUNTIME_ENVIRONMENT}.{name}"
            if name not in set_by_job:
                OmegaConf.update(config, key, value, force_add=True)
            elif OmegaConf.select(config, key) is not None:
                del OmegaConf.select(config, RUNTIME_ENVIRONMENT)[name]
