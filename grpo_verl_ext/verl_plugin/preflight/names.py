"""Check the names that verl looks up in its registries: estimator, loss, trainer mode and agent loop."""

from collections.abc import Iterable, Iterator
from difflib import get_close_matches

from omegaconf import DictConfig
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY

from grpo_verl_ext.catalogue import ESTIMATORS, LOSSES
from grpo_verl_ext.utils.errors import SettingError
from grpo_verl_ext.utils.keys import AGENT_LOOP, ESTIMATOR, LOSS, MODE, setting
from grpo_verl_ext.verl_plugin.algorithms import is_of
from grpo_verl_ext.verl_plugin.config import TRAINER_MODES
from grpo_verl_ext.verl_plugin.features import all_features
from grpo_verl_ext.verl_plugin.preflight.training import driver
from grpo_verl_ext.verl_plugin.usage import PREFIX, registers_elsewhere

_VERLS_MODES = ("sync", "colocate_async", "separate_async")


def check_names(config: DictConfig) -> None:
    """Refuse names that are in no registry, and names of ours that another package took.

    Raises:
        SettingError: the first such name.
    """
    for kind, key, ours, registry in (
        ("advantage estimator", ESTIMATOR, ESTIMATORS, ADV_ESTIMATOR_REGISTRY),
        ("policy loss", LOSS, LOSSES, POLICY_LOSS_REGISTRY),
    ):
        name = setting(config, key)
        if name in ours and not is_of(registry.get(name), ours[name]):
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


def _unknown(config: DictConfig) -> Iterator[tuple[str, str, list[str]]]:
    """Yield key, value and registered names of settings whose value is not registered."""
    loop, mode = setting(config, AGENT_LOOP), setting(config, MODE)
    # Agent loops of a user's own are registered in a file that only the workers read.
    if isinstance(loop, str) and loop.startswith(PREFIX):
        own = (name for feature in all_features() for name in feature.agent_loops)
        yield from _missing(AGENT_LOOP, loop, own)
    if registers_elsewhere(config):
        return
    yield from _missing(ESTIMATOR, setting(config, ESTIMATOR), ADV_ESTIMATOR_REGISTRY)
    yield from _missing(LOSS, setting(config, LOSS), POLICY_LOSS_REGISTRY)
    if driver(config) == "v1" and mode not in (*_VERLS_MODES, *TRAINER_MODES):
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
