"""Report the values of a preset that the command line or a configuration file replaces.

Hydra lets ``key=value`` win over ``+algo=``, wherever they stand, so a preset in front of a script that sets
estimator, loss or KL itself would train the script's algorithm under the preset's name.
"""

import copy
from collections.abc import Collection, Iterator
from difflib import get_close_matches
from typing import Any

from omegaconf import DictConfig, OmegaConf

from grpo_verl_ext.catalogue import ALGORITHMS, FAILED, PRESETS
from grpo_verl_ext.utils.errors import Problem, SettingError, as_typed
from grpo_verl_ext.utils.keys import ACTOR, LOSS, SECTION, setting
from grpo_verl_ext.verl_plugin.config import written

_KEY = f"{SECTION}.preset"
SECTIONS = ("algorithm", ACTOR, "reward")
"""Sections in which a preset says what its algorithm is; elsewhere it makes the training able to run it."""
_FREE = frozenset(
    {
        *("preset", "_target_", "step_rewards", "metric", "log"),
        *("max_response_length", "max_resp_len", "len"),
        *("gvpo_anchor", "ppo_mini_batch_size"),
    }
)
"""Last names of keys that the algorithm leaves to the user, or that other checks report."""


def check_preset(config: DictConfig) -> None:
    """Refuse an ``algorithm.grpo_ext.preset`` that is none of the package's.

    Raises:
        SettingError: an unknown name.
    """
    name = written(config.algorithm).get("preset")
    if name in FAILED:
        raise SettingError(
            _KEY,
            name,
            why=f"this algorithm of another package could not be loaded: {FAILED[name]}",
            valid=tuple(sorted(PRESETS)),
            fix="the same command after that package was mended or removed",
        )
    if name is not None and name not in PRESETS:
        nearest = next(iter(get_close_matches(str(name), PRESETS, n=1)), None)
        raise SettingError(
            _KEY, name, valid=tuple(sorted(PRESETS)), fix=f"+algo={nearest}" if nearest else f"~{_KEY}"
        )


def advise_preset(config: DictConfig) -> Iterator[Problem]:
    """Warn, once for all of them, of values that replace those of the named preset."""
    found = replaced(config)
    if not found:
        return
    name = written(config.algorithm)["preset"]
    estimator, loss = setting(config, "algorithm.adv_estimator"), setting(config, LOSS)
    pairs = "; ".join(
        f"{key} is {as_typed(now)}, in the preset {as_typed(own)}" for key, (own, now) in found.items()
    )
    lines = " ".join(f"{key}={as_typed(now)}" for key, (_, now) in found.items())
    yield Problem(
        _KEY,
        name,
        seen=f"+algo={name} does not name what will be trained, the estimator {estimator} with the loss "
        f"{loss}, since the command or its configuration replaces values of the preset: {pairs}",
        fix=f"the same command without {lines}",
    )


def replaced(config: DictConfig) -> dict[str, tuple[Any, Any]]:
    """Return key → (the preset's value, the configured one) where they differ; {} without a known preset."""
    name = str(written(config.algorithm).get("preset"))
    if name not in PRESETS:
        return {}
    written_there, as_preset = dict(_defining(name)), copy.deepcopy(config)
    for key, value in written_there.items():
        OmegaConf.update(as_preset, key, value, force_add=True)
    pairs = {key: (setting(as_preset, key), setting(config, key)) for key in written_there}
    return {key: (own, now) for key, (own, now) in pairs.items() if own != now}


def _defining(name: str) -> Iterator[tuple[str, Any]]:
    """Yield the dotted keys of a preset that make its algorithm, with their values as written."""
    options = ALGORITHMS[name].loss.options
    free = {*_FREE, *(options.model_fields if options else ())}
    for section in SECTIONS:
        yield from _leaves(OmegaConf.select(PRESETS[name].values, section), section, free)


def _leaves(values: Any, name: str, free: Collection[str]) -> Iterator[tuple[str, Any]]:
    if isinstance(values, DictConfig):
        for key in values:
            yield from _leaves(values._get_node(key), f"{name}.{key!s}", free)
    elif values is not None and name.rpartition(".")[2] not in free:
        yield name, values._value()
