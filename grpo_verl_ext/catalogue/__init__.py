"""All algorithms, one record each: the files of this folder, and those that other packages enter.

Another package names its record by an entry point of the group ``grpo_verl_ext.algorithms``,
``NAME = "package.module:RECORD"``, and has the preset in ``package/config/algo/NAME.yaml``. A module that
verl imports by ``VERL_USE_EXTERNAL_MODULES`` calls `enter`.
"""

import functools
import pkgutil
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from omegaconf import DictConfig

from grpo_verl_ext.catalogue import verls
from grpo_verl_ext.catalogue.averages import PROMPT_MEAN
from grpo_verl_ext.catalogue.grpo import GRPO
from grpo_verl_ext.catalogue.presets import Preset
from grpo_verl_ext.catalogue.record import (
    CLIPS,
    Algorithm,
    Estimator,
    GroupLoss,
    Loss,
    MiniBatchStatistic,
    RecordError,
    TokenLoss,
    VerlsEstimator,
    VerlsLoss,
    mode_of,
)
from grpo_verl_ext.catalogue.requires import ON_FSDP2, STATISTIC_ENGINES
from grpo_verl_ext.config import foreign_algorithms
from grpo_verl_ext.utils.errors import Line, SettingError
from grpo_verl_ext.utils.keys import ESTIMATOR, LOSS, SECTION, key_of, setting

_OWN_PRESETS = Path(__file__).parents[1] / "config"

ALGORITHMS: dict[str, Algorithm] = {}
"""All algorithms by name."""
PRESETS: dict[str, Preset] = {}
"""What the preset of each algorithm sets, by name."""
ESTIMATORS: dict[str, Estimator] = {}
"""Estimators of records by name; verl's own are not among them."""
LOSSES: dict[str, Loss] = {}
"""Losses of records by name; verl's own are not among them."""
VERLS_LOSSES: dict[str, VerlsLoss] = {
    each.name: each for each in vars(verls).values() if isinstance(each, VerlsLoss)
}
"""Losses of verl of which something is known."""
FAILED: dict[str, str] = {}
"""Algorithms of other packages that could not be entered → why."""

_listeners: list[Callable[[Estimator | Loss], None]] = []


def enter(algorithm: Algorithm, presets: Path = _OWN_PRESETS) -> None:
    """Add an algorithm to the catalogue; ``algo/NAME.yaml`` in the folder ``presets`` is its preset."""
    name, estimator, loss = algorithm.name, algorithm.estimator, algorithm.loss
    if name in ALGORITHMS:
        raise RecordError(name, "name", name, "an algorithm of this name is there already")
    preset = Preset.read(algorithm, presets) if algorithm.has_preset else None
    others: tuple[tuple[str, Mapping[str, Any], Any], ...] = (
        ("estimator", ESTIMATORS, estimator),
        ("loss", {**LOSSES, **VERLS_LOSSES}, loss),
    )
    for field, taken, record in others:
        if taken.get(record.name, record) is not record:
            raise RecordError(name, field, record.name, "another record has one of this name")
    for other in LOSSES.values():
        mine, theirs = (each.options.model_fields if each.options else {} for each in (loss, other))
        for key in mine.keys() & theirs.keys():
            if mine[key].default != theirs[key].default:
                why = f"its default differs from that in the loss {other.name}"
                raise RecordError(name, "options", key, why)
    baseline = getattr(estimator, "baseline", None)
    equal = (torch.ones(2), torch.zeros(2).long(), torch.ones(2).bool())  # as no probe's rewards are
    if baseline and not (found := baseline(*equal)).isfinite().all():
        raise RecordError(name, "advantage", found.tolist(), "it must be finite where rewards are equal")
    if isinstance(loss, VerlsLoss):
        VERLS_LOSSES.setdefault(loss.name, loss)
    own: tuple[tuple[dict[str, Any], Any], ...] = ((ESTIMATORS, estimator), (LOSSES, loss))
    for table, record in own:
        # Several algorithms may share one.
        if isinstance(record, Estimator | TokenLoss | GroupLoss) and record.name not in table:
            table[record.name] = record
            for listener in _listeners:
                listener(record)
    ALGORITHMS[name] = algorithm
    if preset is not None:
        PRESETS[name] = preset


def listen(listener: Callable[[Estimator | Loss], None]) -> None:
    """Call a function with every estimator and loss of the catalogue, those to come included."""
    _listeners.append(listener)
    records: list[Estimator | Loss] = [*ESTIMATORS.values(), *LOSSES.values()]
    for record in records:
        listener(record)


def estimator_of(config: DictConfig) -> Estimator | None:
    """Return the record of the configured estimator; None for one of verl's or of nobody's."""
    return ESTIMATORS.get(str(setting(config, ESTIMATOR)))


def loss_of(config: DictConfig) -> Loss | None:
    """Return the record of the configured loss, verl's included; None if nothing is known of it."""
    name = str(setting(config, LOSS))
    return LOSSES.get(name) or VERLS_LOSSES.get(name)


def knows(config: DictConfig) -> bool:
    """Whether the preset, the estimator or the loss of a training is in the catalogue, verl's left aside."""
    named = setting(config, f"{SECTION}.preset") is not None
    return named or setting(config, ESTIMATOR) in ESTIMATORS or setting(config, LOSS) in LOSSES


def check_one_preset(
    words: Sequence[str], config_name: str, preset: object, *, is_verls: bool = False
) -> None:
    """Refuse several presets, by words or by files, and a file of this name that is not the package's.

    Hydra must be initialized, for it lists all files that it composes, whichever names which.

    Args:
        words: of a training's command.
        config_name: Hydra's.
        preset: ``algorithm.grpo_ext.preset`` of what they compose.
        is_verls: no folder of the user's is composed, so that only words can name presets.
    """
    typed = [name for word in words if key_of(word) == "algo" for name in re.findall(r"\w+", word)]
    names = [name for name in dict.fromkeys(typed) if name in PRESETS]
    if not is_verls or not {*names} <= {*_own}:  # the list takes a third of a composition's time
        loader = GlobalHydra.instance().config_loader()
        files = loader.compute_defaults_list(config_name, [*words], RunMode.RUN).defaults
        found = (re.fullmatch(r"algo/(\w+?)(\.yaml)?", str(each.config_path)) for each in files)
        names = list(dict.fromkeys(each[1] for each in found if each and each[1] in PRESETS))
    if len(names) > 1:
        in_files = [f"algo/{name}" for name in names if name not in typed]
        out = " and ".join(in_files[: len(names) - 1])
        raise SettingError(
            "+algo",
            names,
            why=f"a training has one algorithm, and values of {names[0]} that {names[-1]} does not set "
            "would stay",
            valid="one preset",
            fix=f"the same command without {out} in a configuration file"
            if out
            else Line(f"+algo@_global_={names[-1]}", more=f", or +algo@_global_={names[0]}"),
            seen=f"+algo is {' and '.join(names)}",
        )
    if names and (preset is None or (preset in PRESETS and preset != names[0])):
        raise SettingError(
            f"{SECTION}.preset",
            preset,
            why=f"preset {names[0]} is asked for: on Hydra's search path another file algo/{names[0]}.yaml "
            "stands before this package's",
            valid=names[0],
            fix=f"mv algo/{names[0]}.yaml algo/mine.yaml in its folder, and +algo@_global_=mine",
        )


_WIRING = (
    "preset _target_ max_response_length max_resp_len len log step_rewards metric gvpo_anchor "
    "gdpo_reward_keys gdpo_reward_weights"
)
"""Last names of keys of presets that say nothing of an algorithm."""
_YOURS = (
    "tau_pos tau_neg entropy_coeff ppo_epochs ppo_mini_batch_size use_kl_loss kl_loss_coef kl_loss_type "
    "use_kl_in_reward kl_penalty type kl_coef gamma lam penalty_factor"
)
"""Last names of those that an algorithm leaves to its user unless it says otherwise, as it does the clips."""


def wiring(name: str) -> set[str]:
    """Return the dotted keys of a preset that a script may set otherwise without contradicting it."""
    options = ALGORITHMS[name].loss.options
    own = {*_WIRING.split(), *(options.model_fields if options else ())}
    return {
        key for key in PRESETS[name].leaves if key.rpartition(".")[2] in own or key == "critic.model.path"
    }


def left_to_user(name: str) -> set[str]:
    """Return the dotted keys of a preset that may have other values without making another algorithm."""
    own = {*_YOURS.split(), *CLIPS}
    yours = {key for key in PRESETS[name].leaves if key.rpartition(".")[2] in own}
    return (yours | wiring(name)).difference(ALGORITHMS[name].fixed)


def has_groups(config: DictConfig) -> bool:
    """Whether the configured loss needs whole groups."""
    return isinstance(loss_of(config), GroupLoss)


def counts_prompts(loss: Loss | None) -> bool:
    """Whether the loss itself, and not its advantages alone, has to know the prompts."""
    return isinstance(loss, GroupLoss) or (isinstance(loss, TokenLoss) and loss.average is PROMPT_MEAN)


def learns_from_steps(config: DictConfig) -> bool:
    """Whether the configured estimator learns from the rewards of steps."""
    estimator = estimator_of(config)
    return estimator is not None and estimator.needs_steps


def learns_from_several_rewards(config: DictConfig) -> bool:
    """Whether the configured estimator learns from each reward on its own."""
    estimator = estimator_of(config)
    return estimator is not None and estimator.several_rewards


@functools.cache
def enter_foreign() -> None:
    """Enter the algorithms of other packages, once; one that fails is in `FAILED`."""
    for entry, presets in foreign_algorithms().items():
        name, value = entry.name, entry.value
        try:
            record = entry.load()
            if not isinstance(record, Algorithm) or record.name != name:
                raise RecordError(name, "entry point", value, f"it must name the Algorithm {name}")
            enter(record, presets)
        except Exception as error:  # noqa: BLE001  # another package's fault must cost its own part alone
            FAILED[name] = f"{value} ({type(error).__name__}: {error})"


_values = (vars(import_module(each.name)).values() for each in pkgutil.iter_modules(__path__, f"{__name__}."))
# Once, though a module may import another's.
_own = {each.name: each for values in _values for each in values if isinstance(each, Algorithm)}
# GRPO first, of which most others are variants.
for _name in sorted(_own, key=lambda name: (name != GRPO.name, name)):
    enter(_own[_name])

__all__ = [
    "ON_FSDP2",
    "STATISTIC_ENGINES",
    "Algorithm",
    "Estimator",
    "GroupLoss",
    "Loss",
    "MiniBatchStatistic",
    "Preset",
    "RecordError",
    "TokenLoss",
    "VerlsEstimator",
    "VerlsLoss",
    "mode_of",
]
