"""Check the names that verl looks up in its registries: estimator, loss, trainer mode and agent loop."""

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches

from omegaconf import DictConfig
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY

from grpo_verl_ext.verl_plugin.config import (
    ACTOR,
    AGENT_LOOPS,
    RENAMED_AGENT_LOOPS,
    RENAMED_MODES,
    ROLLOUT,
    STORED_AGENT_LOOP,
    TRAINER_MODES,
    setting,
)
from grpo_verl_ext.verl_plugin.errors import SettingError
from grpo_verl_ext.verl_plugin.estimators import ESTIMATORS
from grpo_verl_ext.verl_plugin.losses import LOSSES
from grpo_verl_ext.verl_plugin.preflight.training import MODE, driver
from grpo_verl_ext.verl_plugin.usage import PREFIX, is_ours, registers_elsewhere

ESTIMATOR, LOSS = "algorithm.adv_estimator", f"{ACTOR}.policy_loss.loss_mode"
AGENT_LOOP = f"{ROLLOUT}.agent.default_agent_loop"
VERLS_MODES = ("sync", "colocate_async", "separate_async")


def check_names(config: DictConfig) -> None:
    """Refuse names that are in no registry, names of ours that another package took, and former names.

    Raises:
        SettingError: the first such name.
    """
    for key, renamed in ((MODE, RENAMED_MODES), (AGENT_LOOP, RENAMED_AGENT_LOOPS)):
        _refuse_renamed(key, setting(config, key), renamed)
    for kind, key, ours, registry in (
        ("advantage estimator", ESTIMATOR, ESTIMATORS, ADV_ESTIMATOR_REGISTRY),
        ("policy loss", LOSS, LOSSES, POLICY_LOSS_REGISTRY),
    ):
        name = setting(config, key)
        if name in ours and not is_ours(registry.get(name)):
            raise SettingError(
                key,
                name,
                why=f"the {kind} of this name is that of {registry[name].__module__}, not of grpo_verl_ext",
                valid="one package for a name",
                fix="VERL_USE_EXTERNAL_PLUGINS=<comma-separated plugin names> python3 -m …",
            )
    for key, name, valid in _unknown(config):
        nearest = next(iter(get_close_matches(name, valid, n=1, cutoff=0.0)))
        raise SettingError(
            key,
            name,
            why="nothing of this name is registered with verl (a module of yours that registers it is named "
            "by VERL_USE_EXTERNAL_MODULES)",
            valid=tuple(sorted(valid)),
            fix=f"{key}={nearest}",
        )


def _refuse_renamed(key: str, value: object, renamed: Mapping[str, str]) -> None:
    if isinstance(value, str) and value in renamed:
        new = renamed[value]
        raise SettingError(
            key, value, seen=f"{key}={value} has another name now", valid=new, fix=f"{key}={new}"
        )


def _unknown(config: DictConfig) -> Iterator[tuple[str, str, list[str]]]:
    """Yield key, value and registered names of settings whose value is not registered."""
    loop, mode = setting(config, AGENT_LOOP), setting(config, MODE)
    # Agent loops of a user's own are registered in a file that only the workers read.
    if isinstance(loop, str) and loop.startswith(PREFIX):
        yield from _missing(AGENT_LOOP, loop, (*AGENT_LOOPS.values(), STORED_AGENT_LOOP))
    if registers_elsewhere(config):
        return
    yield from _missing(ESTIMATOR, setting(config, ESTIMATOR), ADV_ESTIMATOR_REGISTRY)
    yield from _missing(LOSS, setting(config, LOSS), POLICY_LOSS_REGISTRY)
    if driver(config) == "v1" and mode not in (*VERLS_MODES, *TRAINER_MODES):
        yield from _missing(MODE, mode, _trainer_modes())


def _missing(key: str, name: object, registered: Iterable[object]) -> Iterator[tuple[str, str, list[str]]]:
    valid = [str(getattr(each, "value", each)) for each in registered]
    if isinstance(name, str) and name not in valid:
        yield key, name, valid


def _trainer_modes() -> Iterable[str]:
    import verl.trainer.ppo.v1  # noqa: F401  # fills the registry; takes seconds
    from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY

    modes: Iterable[str] = TRAINER_REGISTRY
    return modes
