"""Check the names of a configuration: estimator, loss, trainer mode, agent loop and preset.

Hydra lets ``key=value`` win over ``+algo=``, wherever they stand, so a preset in front of a script that sets
estimator, loss or KL itself would train the script's algorithm under the preset's name: such values are
reported.
"""

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY

from grpo_verl_ext.catalogue import (
    ALGORITHMS,
    ESTIMATORS,
    FAILED,
    LOSSES,
    PRESETS,
    Estimator,
    check_one_preset,
    left_to_user,
)
from grpo_verl_ext.catalogue.requires import VERLS_MODES
from grpo_verl_ext.preflight.training import driver
from grpo_verl_ext.utils.documents import leaves
from grpo_verl_ext.utils.errors import Line, Problem, SettingError, as_typed
from grpo_verl_ext.utils.keys import AGENT_LOOP, ESTIMATOR, LOSS, MODE, SECTION, setting, written
from grpo_verl_ext.verl_plugin import features
from grpo_verl_ext.verl_plugin.algorithms import is_of
from grpo_verl_ext.verl_plugin.config import TRAINER_MODES
from grpo_verl_ext.verl_plugin.usage import PREFIX, registers_elsewhere


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
            fix=Line(f"{key}={nearest}"),
        )


def _unknown(config: DictConfig) -> Iterator[tuple[str, str, list[str]]]:
    """Yield key, value and registered names of settings whose value is not registered."""
    loop, mode = setting(config, AGENT_LOOP), setting(config, MODE)
    # Agent loops of a user's own are registered in a file that only the workers read.
    if isinstance(loop, str) and loop.startswith(PREFIX):
        own = (name for feature in features.all_features() for name in feature.agent_loops)
        yield from _missing(AGENT_LOOP, loop, own)
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


_PRESET = f"{SECTION}.preset"
_UNSEEN = ("reward.", "algorithm.filter_groups.")
"""Sections of a preset's values that no gradient on one rollout shows."""


def check_preset(config: DictConfig) -> None:
    """Refuse an ``algorithm.grpo_ext.preset`` that is none of the package's, and several presets.

    Raises:
        SettingError: an unknown name, or a command with several.
    """
    name = written(config.algorithm).get("preset")
    if HydraConfig.initialized():
        check_one_preset(HydraConfig.get().overrides.task, HydraConfig.get().job.config_name, name)
    if name in FAILED and name not in PRESETS:
        raise SettingError(
            _PRESET,
            name,
            why=f"this algorithm of another package could not be loaded: {FAILED[name]}",
            valid=tuple(sorted(PRESETS)),
            fix="the same command after that package was mended or removed",
        )
    if name is not None and name not in PRESETS:
        nearest = next(iter(get_close_matches(str(name), PRESETS, n=1)), None)
        raise SettingError(
            _PRESET,
            name,
            valid=tuple(sorted(PRESETS)),
            fix=Line(f"+algo={nearest}") if nearest else Line(f"~{_PRESET}"),
        )


def advise_features(_config: DictConfig) -> Iterator[Problem]:
    """Warn of features of other packages that could not be loaded."""
    for name, why in features.FAILED.items():
        seen = f"the feature {name} of another package could not be loaded: {why}"
        yield Problem("", None, "the same command after that package was mended or removed", seen=seen)


def advise_preset(config: DictConfig) -> Iterator[Problem]:
    """Warn of a reward manager or a filter of prompts that is not the named preset's.

    `proof.judge` speaks of what a gradient shows.
    """
    name = str(written(config.algorithm).get("preset"))
    found = {
        key: both
        for key, both in differing(config).items()
        if key.startswith(_UNSEEN) and key not in left_to_user(name)
    }
    if found:
        pairs = "; ".join(
            f"{key} is {as_typed(now)}, in the preset {as_typed(own)}" for key, (own, now) in found.items()
        )
        lines = " ".join(f"{key}={as_typed(now)}" for key, (_, now) in found.items())
        yield Problem(
            _PRESET,
            name,
            seen=f"+algo={name} chooses and rewards responses otherwise than its paper: {pairs}",
            fix=Line(without=tuple(found), more=f"the same command without {lines}"),
        )


def differing(config: DictConfig) -> dict[str, tuple[Any, Any]]:
    """Return key → (the preset's value, the configured one) where they differ; {} without a known preset.

    A value that a preset derives from another key follows what the command says of that key. A preset
    without ``scale_rewards`` has that of its estimator.
    """
    name = str(written(config.algorithm).get("preset"))
    if name not in PRESETS:
        return {}
    own = PRESETS[name].leaves
    for key, value in own.items():
        if isinstance(value, str) and "${" in value:
            own[key] = OmegaConf.create({"value": value}, parent=config).value
    pairs = {key: (value, setting(config, key)) for key, value in own.items()}
    estimator, scale = ALGORITHMS[name].estimator, f"{SECTION}.scale_rewards"
    if isinstance(estimator, Estimator) and estimator.baseline is None and not estimator.several_rewards:
        pairs.setdefault(scale, ("group", setting(config, scale, "group")))
    return {key: (value, now) for key, (value, now) in pairs.items() if now != value}


def check_sections_of_modes(config: DictConfig) -> None:
    """Refuse a section ``trainer.v1`` of a trainer mode of ours, which nothing reads."""
    for mode in TRAINER_MODES:
        key, verls = f"trainer.v1.{mode}", f"trainer.v1.{mode.removeprefix(PREFIX)}"
        if section := setting(config, key):
            values = leaves({verls: section})
            raise SettingError(
                key,
                section,
                why="verl reads the section of its own mode",
                valid=verls,
                fix=Line(
                    *(f"{name}={as_typed(value)}" for name, value in values),
                    without=(key,),
                    more=f", without {key}",
                ),
            )
