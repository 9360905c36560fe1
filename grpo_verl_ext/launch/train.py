"""Run verl's ``main_ppo`` in this process, with a preset, if the plugin is loaded here and in the workers.

verl logs at DEBUG that a plugin is missing or failed, and goes on without a word: a worker without it fails
only when it looks for the estimator or the loss, after a rollout.
"""

import importlib.metadata
import inspect
import sys
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import ray
from omegaconf import DictConfig
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from grpo_verl_ext.catalogue import ALGORITHMS
from grpo_verl_ext.launch.values import configured, replaced, words_of
from grpo_verl_ext.utils.console import make_console
from grpo_verl_ext.utils.errors import SettingError
from grpo_verl_ext.utils.keys import RUNTIME_ENVIRONMENT, setting
from grpo_verl_ext.verl_plugin.compose import CONFIG_NAME, CONFIG_PATH, folder_of


def _inspector() -> Callable[[], str | None]:
    """Return a function that says why verl loads no plugin in the process that calls it; None: it does."""
    wanted = importlib.metadata.version("grpo-verl-ext")

    def reason() -> str | None:  # here, so that Ray sends its code to a worker that lacks this package
        import os
        import sys
        from importlib.metadata import version

        install = f"Type there, with {sys.executable}, in a checkout of grpo_verl_ext: pip install ."
        try:
            import verl  # noqa: F401  # loads the plugins

            found = version("grpo-verl-ext")
        except ImportError as error:  # of verl, or that the package is not installed
            return f"{error}. {install}"
        if found != wanted:
            return f"it has version {found} of the package, and the driver has {wanted}. {install}"
        policy = os.environ.get("VERL_USE_EXTERNAL_PLUGINS", "auto")
        if "grpo_verl_ext.plugin" in sys.modules:
            return None
        if policy != "auto":
            return f"VERL_USE_EXTERNAL_PLUGINS is {policy} there. Type: unset VERL_USE_EXTERNAL_PLUGINS"
        return f"verl could not load it; stderr there has the reason. {install}"

    return reason


def checked_training(preset: str, overrides: Sequence[str], *options: str) -> DictConfig | None:
    """Return the configuration that would be trained; None where only Hydra can read the other options.

    It is refused where verl has not loaded the plugin in this process, and where environment variables of
    Ray's runtime environment keep the plugin from the workers.
    """
    if reason := _inspector()():
        raise SettingError("", None, seen=f"this process has no plugin for this training: {reason}")
    if any(word.startswith("-") for word in overrides):
        return None
    config = configured(preset, overrides, *options)
    key = f"{RUNTIME_ENVIRONMENT}.VERL_USE_EXTERNAL_PLUGINS"
    policy = str(setting(config, key, "auto")).strip().lower()
    if policy != "auto" and "grpo_verl_ext" not in (name.strip() for name in policy.split(",")):
        seen, fix = f"{key} is {policy}, with which no worker loads the plugin", "the same command without it"
        raise SettingError(key, policy, seen=seen, valid="auto, or a list with grpo_verl_ext", fix=fix)
    return config


def _asking_first(task_runner_class: Any) -> Any:
    """Return verl's class, whose actor starts if a worker of each node has this version of the plugin."""

    def remote() -> Any:
        asked = {}
        for node in filter(lambda node: node["Alive"], ray.nodes()):
            there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            ask = ray.remote(num_cpus=0, scheduling_strategy=there, max_retries=0)(_inspector())
            asked[node["NodeManagerAddress"]] = ask.remote()
        for address, answer in asked.items():
            try:
                reason = ray.get(answer, timeout=300)  # seconds to start and to import verl
            except (RayError, TimeoutError) as error:
                reason = f"it could not be asked: {error}"
            if reason:
                lacks = f"a worker on the node {address} has no plugin for this training"
                sys.exit(f"grpo_verl_ext: {lacks}: {reason}")
        return task_runner_class.remote()

    with_options: Callable[..., Any] = task_runner_class.options
    return SimpleNamespace(remote=remote, options=lambda **given: _asking_first(with_options(**given)))


def run_training(
    preset: str,
    overrides: Sequence[str],
    config_path: str = CONFIG_PATH,
    config_name: str = CONFIG_NAME,
    config: DictConfig | None = None,
) -> None:
    """Train with the preset, the other words of verl's command line, and two of Hydra's options.

    The preset, its paper and, with a configuration, every value of it that is another there are printed.
    """
    console = make_console()
    console.print(f"{preset}: {ALGORITHMS[preset].paper}")
    for title, sentences in ({} if config is None else replaced(preset, config, overrides)).items():
        for each in sentences:
            console.print(f"  {title}: {each}")
    # Hydra reads another path as a part of the name of the module that is imported here
    flags = [f"--config-path={folder_of(config_path)}"] * (config_path != CONFIG_PATH)
    flags += [f"--config-name={config_name}"] * (config_name != CONFIG_NAME)
    from verl.trainer import main_ppo  # here, so that the plugin is first to say that verl is missing

    run_ppo = main_ppo.run_ppo
    main_ppo.run_ppo = lambda config, task_runner_class: run_ppo(config, _asking_first(task_runner_class))
    # Where `python3 -m verl.trainer.main_ppo` has them: Ray and Hydra read them.
    sys.argv = [inspect.getfile(main_ppo), *flags, *words_of(preset, overrides)]
    main_ppo.main()
