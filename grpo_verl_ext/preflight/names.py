"""Check the names of a configuration: estimator, loss, trainer mode, agent loop and preset.

Hydra lets ``key=value`` win over ``+algo=``, wherever they stand, so a preset in front of a script that sets
estimator, loss or KL itself would train the script's algorithm under the preset's name: such values are
reported.
"""

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY

from grpo_verl_ext.catalogue import ESTIMATORS, FAILED, LOSSES, PRESETS, check_one_preset, left_to_user
from grpo_verl_ext.catalogue.requires import VERLS_MODES, runs_v1
from grpo_verl_ext.proof import differing
from grpo_verl_ext.utils.documents import leaves
from grpo_verl_ext.utils.errors import Line, Problem, SettingError, as_typed
from grpo_verl_ext.utils.keys import AGENT_LOOP, ESTIMATOR, LOSS, MODE, SECTION, setting, written
from grpo_verl_ext.verl_plugin import features
from grpo_verl_ext.verl_plugin.algorithms import is_of
from grpo_verl_ext.verl_plugin.config import TRAINER_MODES
from grpo_verl_ext.verl_plugin.usage import PREFIX, registers_elsewhere


def check_names(config: DictConfig) -> None:
    """Refuse names that are in no registry, and names of ours that another package took."""
    loop, mode = setting(config, AGENT_LOOP), setting(config, MODE)
    asked: list[tuple[str, Any, Iterable[object]]] = []
    if isinstance(loop, str) and loop.startswith(PREFIX):
        # Agent loops of a user's own are registered in a file that only the workers read.
        own = [name for feature in features.all_features() for name in feature.agent_loops]
        asked.append((AGENT_LOOP, loop, own))
    for kind, key, ours, registry in (
        ("advantage estimator", ESTIMATOR, ESTIMATORS, ADV_ESTIMATOR_REGISTRY),
        ("policy loss", LOSS, LOSSES, POLICY_LOSS_REGISTRY),
    ):
        name = setting(config, key)
        if name in ours and not is_of(registry.get(name), ours[name]):
            why = f"the {kind} of this name is that of {registry[name].__module__}, not of grpo_verl_ext"
            fix = "VERL_USE_EXTERNAL_PLUGINS=<comma-separated plugin names> python3 -m …"
            raise SettingError(key, name, why=why, valid="one package for a name", fix=fix)
        asked.append((key, name, registry))
    if runs_v1(config) and mode not in (*VERLS_MODES, *TRAINER_MODES):
        import verl.trainer.ppo.v1  # noqa: F401  # fills the registry; takes seconds
        from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY

        asked.append((MODE, mode, TRAINER_REGISTRY))
    for key, name, registered in asked:
        valid = [str(getattr(each, "value", each)) for each in registered]
        may_be_elsewhere = key != AGENT_LOOP and registers_elsewhere(config)
        if isinstance(name, str) and name not in valid and not may_be_elsewhere:
            why = "nothing of this name is registered with verl (a module of yours that registers it is "
            why += "named by VERL_USE_EXTERNAL_MODULES)"
            fix = Line(f"{key}={get_close_matches(name, valid, n=1, cutoff=0.0)[0]}")
            raise SettingError(key, name, why=why, valid=tuple(sorted(valid)), fix=fix)


_PRESET = f"{SECTION}.preset"
_MENDED = "the same command after that package was mended or removed"
_UNSEEN = ("reward.", "algorithm.filter_groups.")
"""Sections of a preset's values that no gradient on one rollout shows."""


def check_preset(config: DictConfig) -> None:
    """Refuse an ``algorithm.grpo_ext.preset`` that is none of the package's, and several presets."""
    name, valid = written(config.algorithm).get("preset"), tuple(sorted(PRESETS))
    if HydraConfig.initialized():
        check_one_preset(HydraConfig.get().overrides.task, HydraConfig.get().job.config_name, name)
    if name is None or name in PRESETS:
        return
    if name in FAILED:
        why = f"this algorithm of another package could not be loaded: {FAILED[name]}"
        raise SettingError(_PRESET, name, why=why, valid=valid, fix=_MENDED)
    nearest = get_close_matches(str(name), PRESETS, n=1)
    raise SettingError(
        _PRESET, name, valid=valid, fix=Line(f"+algo={nearest[0]}" if nearest else f"~{_PRESET}")
    )


def advise_features(_config: DictConfig) -> Iterator[Problem]:
    """Warn of features of other packages that could not be loaded."""
    for name, why in features.FAILED.items():
        seen = f"the feature {name} of another package could not be loaded: {why}"
        yield Problem("", None, _MENDED, seen=seen)


def advise_preset(config: DictConfig) -> Iterator[Problem]:
    """Warn of a reward manager or a filter of prompts that is not the named preset's.

    `proof.judge` speaks of what a gradient shows.
    """
    name = str(written(config.algorithm).get("preset"))
    found = {
        key: (as_typed(own), f"{key}={as_typed(now)}")
        for key, (own, now) in differing(config).items()
        if key.startswith(_UNSEEN) and key not in left_to_user(name)
    }
    if found:
        pairs = "; ".join(f"{line}, in the preset {own}" for own, line in found.values())
        seen = f"+algo={name} chooses and rewards responses otherwise than its paper: {pairs}"
        lines = " ".join(line for _, line in found.values())
        fix = Line(without=tuple(found), more=f"the same command without {lines}")
        yield Problem(_PRESET, name, seen=seen, fix=fix)


def _check_sections_of_modes(config: DictConfig) -> None:
    """Refuse a section ``trainer.v1`` of a trainer mode of ours, which nothing reads."""
    for mode in TRAINER_MODES:
        key, verls = f"trainer.v1.{mode}", f"trainer.v1.{mode.removeprefix(PREFIX)}"
        if section := setting(config, key):
            words = (f"{name}={as_typed(value)}" for name, value in leaves({verls: section}))
            fix = Line(*words, without=(key,), more=f", without {key}")
            why = "verl reads the section of its own mode"
            raise SettingError(key, section, why=why, valid=verls, fix=fix)


NAMES = features.Feature(
    checks={"preset-name": check_preset, "names": check_names, "sections": _check_sections_of_modes},
    advice={"preset": advise_preset, "features": advise_features},
)
