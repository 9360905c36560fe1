"""Judge what a configuration trains by its gradient on the synthetic rollout.

Another gradient than that of the algorithm which the command names; none, or one that is not finite; one that
depends on the cut; several updates without a ratio; a refusal of verl's or of ours, before a rollout; and, as
notes, settings that change nothing.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf, open_dict
from torch import Tensor
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY
from verl.utils.import_utils import import_external_libs

from grpo_verl_ext.catalogue import (
    ALGORITHMS,
    PRESETS,
    Algorithm,
    Estimator,
    TokenLoss,
    VerlsLoss,
    knows,
    learns_from_several_rewards,
    left_to_user,
    loss_of,
)
from grpo_verl_ext.catalogue.averages import CONSTANT_LENGTH
from grpo_verl_ext.proof.batch import cut
from grpo_verl_ext.proof.gradient import Prepared, Training, of_probe, rollout_for
from grpo_verl_ext.proof.reference import reference_weights
from grpo_verl_ext.proof.rollout import Rollout
from grpo_verl_ext.utils.errors import Finding, Line, Problem, SettingError, Severity, as_typed
from grpo_verl_ext.utils.keys import (
    ACTOR,
    AGGREGATION,
    ESTIMATOR,
    LOSS,
    POLICY_LOSS,
    SCALE_FACTOR,
    SECTION,
    key_of,
    setting,
)
from grpo_verl_ext.verl_plugin.mini_batch.plan import parts_of_step, parts_of_step_key, several_updates

TOLERANCE = 1e-6
"""Largest relative distance of two gradients that float32 in verl's estimators explains."""
_KNOWN = ("verl", "grpo_verl_ext", "functools")
"""Packages of functions whose error at the first update is a refusal, and no fault of the probe's batch."""
_CUTS = (("uneven", 1), ("dynamic", 2))
_PRESET = f"{SECTION}.preset"
_SECTIONS = ("algorithm.", f"{ACTOR}.")
"""Sections with the keys on which a gradient on one rollout depends."""
_UNSEEN = (
    "algorithm.filter_groups",
    "algorithm.kl_ctrl.type",
    "algorithm.kl_ctrl.horizon",
    "algorithm.kl_ctrl.target_kl",
    "algorithm.pf_ppo",
    f"{POLICY_LOSS}._target_",
    f"{POLICY_LOSS}.max_response_length",
    f"{POLICY_LOSS}.gvpo_terms_ablation",
)
"""Settings that act elsewhere than in a gradient on one rollout."""
_OF_LOSS = frozenset(
    [
        "clip_ratio",
        "clip_ratio_low",
        "clip_ratio_high",
        "clip_ratio_c",
        "tau_pos",
        "tau_neg",
        "entropy_coeff",
        "kl_loss_coef",
        "kl_loss_type",
        "loss_agg_mode",
        "loss_scale_factor",
        "use_prefix_grouper",
    ]
)
"""verl's keys of ``actor`` that a loss, or a term beside it, could read."""
_OF_ESTIMATOR = ("scale_rewards", "mask_truncated_completions", "gvpo_anchor")
"""Options of ``algorithm.grpo_ext`` likewise."""


@dataclass(frozen=True)
class Judged:
    """A configuration with its gradients: the first update's, and a later one's."""

    prepared: Prepared
    rollout: Rollout
    training: Training
    """The later update's, whose advantages are computed once for all its cuts."""
    first: Tensor
    later: Tensor

    @classmethod
    def of(cls, prepared: Prepared, rollout: Rollout) -> Judged:
        """Run the configuration through verl's functions, at both updates."""
        first, later = Training(prepared, rollout.on_policy()), Training(prepared, rollout)
        return cls(prepared, rollout, later, first.weights(), later.weights())

    @property
    def has_gradient(self) -> bool:
        """Whether a token's log-prob changes the loss, by a finite number at both updates."""
        finite = self.first.isfinite().all() and self.later.isfinite().all()
        return bool(finite and self.later.any())

    def distance(self, other: Judged | _Promise) -> float:
        """‖g − other‖/‖other‖, the larger of the two updates'; infinite for NaN."""
        return max(_distance(self.first, other.first), _distance(self.later, other.later))


def _distance(found: Tensor, expected: Tensor) -> float:
    away = float((found - expected).norm() / expected.norm().clamp(min=1e-300))
    return away if math.isfinite(away) else math.inf


def judgements(config: DictConfig, words: Sequence[str] = ()) -> Iterator[Finding]:
    """Yield the findings about what would be trained, without notes.

    Args:
        config: as composed.
        words: of the command line, which the messages tell from values of a file.
    """
    import_external_libs(setting(config, "actor_rollout_ref.model.external_lib"))  # as the workers do
    if not _is_registered(config):
        return
    algorithm = ALGORITHMS.get(str(setting(config, _PRESET)))
    own = of_probe(config)
    papers = own if algorithm is None else with_papers_values(own, algorithm)
    rollout = rollout_for(own, papers)
    try:
        prepared = Prepared(own)
    except Exception:  # noqa: BLE001  # verl's own validation speaks of what its classes refuse
        return
    try:
        judged = Judged.of(prepared, rollout)
    except Exception as error:  # noqa: BLE001  # whatever an estimator or a loss raises at the first update
        yield Finding("refused", *_refused(config, error, own, rollout, words, algorithm))
        return
    if algorithm is not None:
        try:
            problems = list(_another(_Promise(algorithm, papers, rollout), judged, config, words))
        except SettingError:  # an option outside of its range, of which another check speaks
            problems = []
        yield from (Finding("gradient", Severity.WARNING, each) for each in problems)
    severity = Severity.ERROR if knows(config) else Severity.WARNING
    for each in _no_gradient(config, judged, words, algorithm):
        yield Finding("no-gradient", severity, each)
    yield from (Finding("cut", Severity.WARNING, each) for each in _cut(judged))
    yield from (Finding("ratio", Severity.WARNING, each) for each in _ratio(config, judged))


def _is_registered(config: DictConfig) -> bool:
    """Whether this process has the estimator and the loss; another check speaks of unknown names."""
    estimators = [str(getattr(each, "value", each)) for each in ADV_ESTIMATOR_REGISTRY]
    return setting(config, ESTIMATOR) in estimators and setting(config, LOSS) in POLICY_LOSS_REGISTRY


def with_papers_values(config: DictConfig, algorithm: Algorithm) -> DictConfig:
    """Return a copy with the values of the package's own preset where they are not the user's."""
    copied = copy.deepcopy(config)
    for key, value in papers_values(algorithm).items():
        put(copied, key, value)
    return copied


def papers_values(algorithm: Algorithm) -> dict[str, Any]:
    """Return key → value as written for what a record does not leave to its user, in `_SECTIONS`."""
    free = left_to_user(algorithm.name)
    values = {
        key: value
        for key, value in PRESETS[algorithm.name].leaves.items()
        if key.startswith(_SECTIONS) and key not in free
    }
    estimator = algorithm.estimator
    if isinstance(estimator, Estimator) and estimator.baseline is None and not estimator.several_rewards:
        values.setdefault(f"{SECTION}.scale_rewards", "group")
    return values


def put(config: DictConfig, key: str, value: Any) -> None:
    """Give a key a value, in a copy that is the caller's own."""
    with open_dict(config):
        OmegaConf.update(config, key, value, force_add=True)


# Judgements


def _refused(  # noqa: PLR0917  # all that was tried
    config: DictConfig,
    error: Exception,
    own: DictConfig,
    rollout: Rollout,
    words: Sequence[str],
    algorithm: Algorithm | None,
) -> tuple[Severity, Problem]:
    """Return what verl, this package or another one raises at the first update, and the word that does it."""
    if isinstance(error, SettingError):
        return Severity.ERROR, error.problem
    loss, said = setting(config, LOSS), f"{type(error).__name__}: {error}"
    functions = ADV_ESTIMATOR_REGISTRY.get(setting(config, ESTIMATOR)), POLICY_LOSS_REGISTRY[loss]
    modules = {str(getattr(each, "__module__", "verl")) for each in functions}
    pair = f"{ESTIMATOR}={setting(config, ESTIMATOR)} with {LOSS}={loss}"
    if others := sorted(each for each in modules if each.partition(".")[0] not in _KNOWN):
        seen = f"{pair} could not be tried, for {' and '.join(others)} raises on a synthetic batch {said}"
        return Severity.WARNING, Problem("", None, seen=f"{seen}; the training goes on")
    for key, usual in _set_by(words, own, None, algorithm):
        if _quietly(_with(own, key, usual), rollout) is not None:
            why = f"the first update then raises {said}"
            return Severity.ERROR, Problem(key, setting(config, key), _without(key), why=why)
    return Severity.ERROR, Problem("", None, seen=f"{pair} raises at the first update {said}")


def _no_gradient(
    config: DictConfig, judged: Judged, words: Sequence[str], algorithm: Algorithm | None
) -> Iterator[Problem]:
    if judged.has_gradient:
        return
    fault = "has no gradient" if judged.later.isfinite().all() else "has a gradient that is not finite"
    for key, usual in _set_by(words, judged.prepared.config, None, algorithm):
        trial = _quietly(_with(judged.prepared.config, key, usual), judged.rollout)
        if trial is not None and trial.has_gradient:
            why = f"the training then {fault}, on the probe's batch"
            yield Problem(key, setting(config, key), _without(key), why)
            return
    pair = f"{ESTIMATOR}={setting(config, ESTIMATOR)} with {LOSS}={setting(config, LOSS)}"
    fix = "the same command with other values of its options"
    yield Problem(LOSS, setting(config, LOSS), fix, seen=f"{pair} {fault}, on the probe's batch")


def _cut(judged: Judged) -> Iterator[Problem]:
    config, loss = judged.prepared.config, loss_of(judged.prepared.config)
    if isinstance(loss, TokenLoss) and loss.average is not None and loss.average.depends_on_split:
        return
    for split, ranks in _CUTS:
        cut_into = cut(judged.rollout.rows.lengths, split, ranks)
        away = _distance(judged.training.weights(cut_into), judged.later)
        if not away <= TOLERANCE:
            is_null = setting(config, SCALE_FACTOR) is None
            if is_null and setting(config, AGGREGATION) == CONSTANT_LENGTH.mode:
                key, line = SCALE_FACTOR, f"{SCALE_FACTOR}=${{data.max_response_length}}"
            else:
                key, line = LOSS, loss.exact_preset if isinstance(loss, VerlsLoss) else ""
            why = "the gradient depends on how a batch is cut into micro-batches and ranks: "
            why += f"{_percent(away)} away from the whole batch's, on the probe's batch"
            yield Problem(key, setting(config, key), Line(line) if line else "", why=why)
            return


def _ratio(config: DictConfig, judged: Judged) -> Iterator[Problem]:
    if not several_updates(config) or not judged.later.any():
        return
    if torch.equal(judged.training.weights(old_shift=0.1), judged.later):
        key, parts = f"{ACTOR}.ppo_mini_batch_size", parts_of_step_key(config)
        one_part = [f"{parts}=1"] if parts_of_step(config) > 1 else []
        yield Problem(
            key,
            setting(config, key),
            Line(f"{key}=${{data.train_batch_size}}", f"{ACTOR}.ppo_epochs=1", *one_part),
            why=f"a rollout is then used for several updates, and {LOSS}={setting(config, LOSS)} has no "
            "ratio that corrects for a policy that has moved",
            valid="one update on a rollout",
        )


class _Promise:
    """What the record of a preset says of a rollout."""

    def __init__(self, algorithm: Algorithm, config: DictConfig, rollout: Rollout) -> None:
        self.algorithm, self.config, prepared = algorithm, config, Prepared(config)
        both = (reference_weights(algorithm, prepared, each) for each in (rollout.on_policy(), rollout))
        self.first, self.later = both

    def keeps(self, judged: Judged | None) -> bool:
        return judged is not None and judged.distance(self) <= TOLERANCE


def _another(
    promise: _Promise, judged: Judged, config: DictConfig, words: Sequence[str]
) -> Iterator[Problem]:
    if promise.keeps(judged):
        return
    algorithm, typed = promise.algorithm, {key_of(word) for word in words}
    seen = (
        f"+algo={algorithm.name} does not name what will be trained: on the probe's batch the gradient is "
        f"{_percent(judged.distance(promise))} away from that of {algorithm.name} ({algorithm.paper})"
    )
    causes = {key: (own, setting(config, key)) for key, own in _causes(promise, judged)}
    if not causes:
        seen += f", at the preset's own values: {ESTIMATOR}={setting(config, ESTIMATOR)} or {LOSS}="
        seen += f"{setting(config, LOSS)} is another function than the record's, or verl's have changed"
        yield Problem(_PRESET, algorithm.name, "grpo-verl-ext doctor", seen=seen)
        return
    pairs = "; ".join(
        f"{key} is {as_typed(now)}{'' if key in typed or not words else ' (by a file)'}, in the preset "
        f"{as_typed(own)}"
        for key, (own, now) in causes.items()
    )
    taken_out = [f"{key}={as_typed(now)}" for key, (_, now) in causes.items() if key in typed or not words]
    put_in = [f"{key}={as_typed(own)}" for key, (own, _) in causes.items() if words and key not in typed]
    more = f"the same command without {' '.join(taken_out)}" if taken_out and not put_in else ""
    fix = Line(*put_in, without=tuple(key_of(each) for each in taken_out), more=more)
    yield Problem(_PRESET, algorithm.name, fix, seen=f"{seen}: {pairs}")


def _causes(promise: _Promise, judged: Judged) -> Iterator[tuple[str, Any]]:
    """Yield each key that alone makes another gradient of the record's, and the preset's value."""
    if not promise.keeps(_quietly(promise.config, judged.rollout)):
        return
    for key, own in papers_values(promise.algorithm).items():
        now = setting(judged.prepared.config, key)
        is_other = now != setting(promise.config, key)
        if is_other and not promise.keeps(_quietly(_with(promise.config, key, now), judged.rollout)):
            yield key, own


def _percent(share: float) -> str:
    return f"{share:.1%}" if share < 0.1 else f"{share:.0%}" if share < 1e3 else "more than 1000 times"


# Notes


def unread(config: DictConfig, words: Sequence[str], default: DictConfig) -> Iterator[Finding]:
    """Yield a note for each word of the command line that changes nothing of the gradient.

    Args:
        config: as composed.
        words: of the command line.
        default: verl's own configuration.
    """
    if not _is_registered(config):
        return
    own = of_probe(config)
    algorithm = ALGORITHMS.get(str(setting(config, _PRESET)))
    trials = [(key, _with(own, key, value)) for key, value in _set_by(words, own, default, algorithm)]
    rollout = rollout_for(own, *(trial for _, trial in trials))
    try:
        judged = Judged.of(Prepared(own), rollout)
    except Exception:  # noqa: BLE001  # `judgements` reports it
        return
    for key, trial in trials:
        without = None if setting(trial, key) == setting(own, key) else _quietly(trial, rollout)
        if without is not None and not judged.distance(without):
            why = "it changes nothing of what is trained, on the probe's batch"
            yield Finding("unread", Severity.NOTE, Problem(key, setting(config, key), _without(key), why=why))


def _set_by(
    words: Sequence[str], config: DictConfig, default: DictConfig | None, algorithm: Algorithm | None
) -> Iterator[tuple[str, Any]]:
    """Yield the keys of words that a gradient could read, with their values without it, or `_MISSING`."""
    leaves = PRESETS[algorithm.name].leaves if algorithm is not None else {}
    for key in dict.fromkeys(map(key_of, words)):
        section, _, name = key.rpartition(".")
        reads = {SECTION: name in _OF_ESTIMATOR, ACTOR: name in _OF_LOSS}
        if key == "algorithm.gdpo_reward_keys" and learns_from_several_rewards(config):
            continue  # the synthetic rewards have no names
        if not reads.get(section, key.startswith(("algorithm.", POLICY_LOSS))) or key.startswith(_UNSEEN):
            continue
        of_verl = {} if default is None else OmegaConf.select(default, section) or {}
        usual = leaves.get(key, of_verl.get(name, _MISSING))
        if usual is _MISSING or setting(config, key) != usual:
            yield key, usual


_MISSING: Any = object()


def _with(config: DictConfig, key: str, value: Any) -> DictConfig:
    """Return a copy with another value of a key, or without the key."""
    copied = copy.deepcopy(config)
    if value is not _MISSING:
        put(copied, key, value)
        return copied
    section, _, name = key.rpartition(".")
    with open_dict(copied):
        OmegaConf.select(copied, section).pop(name, None)
    return copied


def _without(key: str) -> Line:
    return Line(without=(key,), more=f"the same command without {key}")


def _quietly(config: DictConfig, rollout: Rollout) -> Judged | None:
    """Return the gradients; None where verl or an estimator or loss raises."""
    try:
        return Judged.of(Prepared(config), rollout)
    except Exception:  # noqa: BLE001  # the caller asks whether it does
        return None


# All presets


def presets_on(default: DictConfig) -> Iterator[tuple[str, float]]:
    """Yield each preset, and how far its gradient by the installed verl is from its record's.

    Args:
        default: verl's own configuration.
    """
    for name, preset in PRESETS.items():
        config = of_probe(default)
        for key, value in preset.leaves.items():
            put(config, key, value)
        rollout = rollout_for(config)
        judged = _quietly(config, rollout)
        away = math.inf if judged is None else judged.distance(_Promise(ALGORITHMS[name], config, rollout))
        yield name, away
