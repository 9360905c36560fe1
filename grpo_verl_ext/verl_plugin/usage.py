"""Decide whether a training uses this package; all others get no check, no message and no patch.

A training uses the package when its configuration names one of the package's estimators, losses, trainer
modes, agent loops, reward managers, reward functions or tasks, misspells such a name, sets
``algorithm.grpo_ext`` (every preset does), or asks for the CPU platform.
"""

from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from difflib import get_close_matches
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from grpo_verl_ext.utils import keys
from grpo_verl_ext.verl_plugin.cpu import PLATFORM_VARIABLE, chosen_platform

_PACKAGE = "grpo_verl_ext"
PLATFORM_KEY = f"{keys.RUNTIME_ENVIRONMENT}.{PLATFORM_VARIABLE}"
"""Key in which ``+platform=cpu`` sets the platform."""

RECORD = "grpo_ext_record"
"""Attribute of a function that verl calls, with the record of the catalogue that it was made from."""

PREFIX = "grpo_ext_"
"""Begins the names of the package's trainer modes and agent loops."""

_ELSEWHERE = (
    "actor_rollout_ref.model.external_lib",
    f"{keys.RUNTIME_ENVIRONMENT}.VERL_USE_EXTERNAL_MODULES",
    "ray_kwargs.ray_init.runtime_env.worker_process_setup_hook",
)
"""Keys of modules that other processes import and the driver does not; they may register names."""

RUNNER: ContextVar[object] = ContextVar("runner", default=None)
"""The task runner that verl's ``run_ppo`` starts inside Ray; one of a user's own may register names there."""

_NAMES: Mapping[str, tuple[str, ...]] = {
    keys.MODE: (),
    keys.AGENT_LOOP: (),
    "reward.reward_manager.name": (keys.REWARD_MANAGER,),
    "task.package": (_PACKAGE,),
}
"""Settings and the package's names among their values, besides those that begin with `PREFIX`."""

_PATHS = (f"{keys.POLICY_LOSS}._target_", "reward.custom_reward_function.path")
"""Settings that name a module."""


def used_settings(config: DictConfig) -> Iterator[str]:
    """Yield the settings by which a training uses this package, as ``key=value``."""
    for key, names in _NAMES.items():
        value = _selected(config, key)
        if value in names or str(value).startswith(PREFIX):
            yield f"{key}={value}"
    # Another package may have registered one of our names; then the setting means that package.
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY

    registries = {keys.ESTIMATOR: ADV_ESTIMATOR_REGISTRY, keys.LOSS: POLICY_LOSS_REGISTRY}
    for key, registry in registries.items():
        value = _selected(config, key)
        if isinstance(value, str):
            name = value
            if name not in registry and not registers_elsewhere(config):  # then it is misspelt
                name = next(iter(get_close_matches(name, map(str, registry), n=1, cutoff=0.7)), name)
            function = registry.get(name)
            owner = str(getattr(function, "__module__", ""))
            if hasattr(function, RECORD) or owner.startswith(f"{_PACKAGE}."):
                yield f"{key}={value}"
    for key in _PATHS:
        value = _selected(config, key)
        if isinstance(value, str) and value.removeprefix("pkg://").startswith(f"{_PACKAGE}."):
            yield f"{key}={value}"
    if _selected(config, keys.SECTION) is not None:
        yield keys.SECTION
    if asks_for_cpu(config):
        yield f"{PLATFORM_VARIABLE}=cpu"


def asks_for_cpu(config: DictConfig) -> bool:
    """Whether the training is to run on the CPU platform: ``+platform=cpu`` or ``VERL_PLATFORM=cpu``."""
    return _selected(config, PLATFORM_KEY) == "cpu" or chosen_platform() == "cpu"


def registers_elsewhere(config: DictConfig) -> bool:
    """Whether other processes may know more estimators, losses and trainers than this one."""
    is_verls = str(getattr(RUNNER.get(), "__module__", "verl")).partition(".")[0] == "verl"
    return not is_verls or any(_selected(config, key) is not None for key in _ELSEWHERE)


def own_task(config: DictConfig) -> DictConfig | None:
    """Return the section ``task`` if a preset ``+task=`` of this package set it, and None for any other."""
    task: DictConfig = _selected(config, "task")
    return task if _selected(config, "task.package") == _PACKAGE else None


def _selected(config: DictConfig, key: str) -> Any:
    try:
        return OmegaConf.select(config, key, throw_on_resolution_failure=False)
    except OmegaConfBaseException:  # a setting where a section should be, which verl reports
        return None
