"""Ask, where verl validates a composed configuration, whether the training uses this package.

Patch of ``verl.utils.config.validate_config``, which verl's ``main`` calls in the driver before it starts
Ray. It is the only patch in the driver of every training. verl has no hook there; a Hydra callback would run
with the presets of this package only, and Hydra turns a callback's exceptions into warnings.

A training that uses nothing of the package goes straight on to verl's own validation. For the others the
driver chooses the platform, checks the configuration, and writes into Ray's runtime environment what the
training's processes have to know.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from grpo_verl_ext.verl_plugin import patches
from grpo_verl_ext.verl_plugin.findings import SettingError, Severity


def patch(config_module: Any) -> None:
    """Put the question, and what follows from it, around verl's own validation."""
    original = config_module.validate_config

    @functools.wraps(original)
    def validate_config(config: DictConfig, *args: Any, **kwargs: Any) -> None:
        from grpo_verl_ext.verl_plugin import usage

        if not usage.uses_package(config):
            original(config, *args, **kwargs)
            return
        choose_platform(config)
        refuse_or_warn(config)
        original(config, *args, **kwargs)
        hand_on(config, environment(config))

    config_module.validate_config = validate_config


def choose_platform(config: DictConfig) -> None:
    """Let verl see the CPU platform in this process, too, and settle which Ray it uses, where it is asked for.

    verl's ``main`` has set ``trainer.device`` by then to an accelerator's, if need be to one that is not
    there: it asked its platforms before the configuration was composed.
    """
    from grpo_verl_ext.verl_plugin import cpu, ray_section, usage
    from grpo_verl_ext.verl_plugin.cpu.detection import VARIABLE, chosen_platform

    if OmegaConf.select(config, usage.PLATFORM_KEY) == "cpu" and chosen_platform() in ("", "cpu"):
        os.environ[VARIABLE] = "cpu"
        cpu.install()
        config.trainer.device = "cpu"
        print(f"grpo_verl_ext: {ray_section.settle(config).words}", file=sys.stderr, flush=True)


def refuse_or_warn(config: DictConfig) -> None:
    """Print the warnings and end with the first refusal.

    Raises:
        SettingError: in a Ray actor, where a trainer of verl validates its configuration.
        SystemExit: in a driver.
    """
    from grpo_verl_ext.verl_plugin import preflight

    found = list(preflight.findings(config))
    for error in found:
        if error.severity is Severity.ERROR:
            _refuse(f"{error.message} {_silence(error.check)}", error.key)
    for warning in found:
        message = f"grpo_verl_ext: warning: {warning.message} {_silence(warning.check)}"
        print(message, file=sys.stderr, flush=True)


def environment(config: DictConfig) -> Iterator[tuple[str, str]]:
    """Environment variables for the processes of the training: their platform and their patches."""
    from grpo_verl_ext.verl_plugin import usage
    from grpo_verl_ext.verl_plugin.cpu.detection import VARIABLE
    from grpo_verl_ext.verl_plugin.settings import TrainingSettings

    if usage.asks_for_cpu(config):
        yield VARIABLE, "cpu"
    needed = TrainingSettings.from_config(config.algorithm).patches()
    if needed:
        yield patches.VARIABLE, ",".join(needed)


def hand_on(config: DictConfig, variables: Iterator[tuple[str, str]]) -> None:
    """Write the variables into Ray's runtime environment, which verl hands to ``ray.init``.

    Ray refuses a variable that the job of this driver has set already; such a one is left out.
    """
    from grpo_verl_ext.verl_plugin import usage

    set_by_job = _variables_of_job()
    with open_dict(config):
        for name, value in variables:
            key = f"{usage.RUNTIME_ENVIRONMENT}.{name}"
            if name not in set_by_job:
                OmegaConf.update(config, key, value, force_add=True)
            elif OmegaConf.select(config, key) is not None:
                del OmegaConf.select(config, usage.RUNTIME_ENVIRONMENT)[name]


def _variables_of_job() -> dict[str, str]:
    from ray._private.runtime_env.constants import RAY_JOB_CONFIG_JSON_ENV_VAR

    job = json.loads(os.environ.get(RAY_JOB_CONFIG_JSON_ENV_VAR, "{}"))
    found: dict[str, str] = (job.get("runtime_env") or {}).get("env_vars") or {}
    return found


def _silence(check: str) -> str:
    return f"(silent with '++algorithm.grpo_ext.silence=[{check}]')"


def _refuse(message: str, key: str) -> None:
    import ray

    if ray.is_initialized() and ray.get_runtime_context().worker.mode == ray.WORKER_MODE:
        raise SettingError(f"grpo_verl_ext: {message}", key=key)
    sys.exit(f"grpo_verl_ext: {message}")
