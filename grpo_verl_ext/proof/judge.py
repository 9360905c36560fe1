"""Judge what a configuration trains by its gradient on the synthetic rollout.

Another gradient than that of the algorithm which the command names; none, or one that is not finite; one that
depends on the cut; several updates without a ratio; a refusal of verl's or of ours, before a rollout; and, as
notes, settings that change nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY
from verl.utils.import_utils import import_external_libs

from grpo_verl_ext import catalogue
from grpo_verl_ext.catalogue import ALGORITHMS, PRESETS, Algorithm, Estimator, TokenLoss, VerlsLoss
from grpo_verl_ext.catalogue.averages import CONSTANT_LENGTH
from grpo_verl_ext.catalogue.record import CLIPS
from grpo_verl_ext.proof.batch import Rollout, cut
from grpo_verl_ext.proof.gradient import Training, changed, of_probe, rollout_for
from grpo_verl_ext.proof.reference import reference_weights
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
_KNOWN = {"verl", "grpo_verl_ext", "functools"}
"""Packages of functions whose error at the first update is a refusal, and no fault of the probe's batch."""
_CUTS = (("uneven", 1), ("dynamic", 2))
_PRESET = f"{SECTION}.preset"
_SECTIONS = ("algorithm.", f"{ACTOR}.")
"""Sections with the keys on which a gradient on one rollout depends."""
_UNSEEN = (
    *("algorithm.filter_groups", "algorithm.pf_ppo"),
    *(f"algorithm.kl_ctrl.{name}" for name in ("type", "horizon", "target_kl")),
    *(f"{POLICY_LOSS}.{name}" for name in ("_target_", "max_response_length", "gvpo_terms_ablation")),
)
"""Settings that act elsewhere than in a gradient on one rollout."""
_OF_LOSS = {*CLIPS, *["tau_pos", "tau_neg", "entropy_coeff", "kl_loss_coef", "kl_loss_type"]}
_OF_LOSS |= {"loss_agg_mode", "loss_scale_factor", "use_prefix_grouper"}
"""verl's keys of ``actor`` that a loss, or a term beside it, could read."""
_OF_ESTIMATOR = {"scale_rewards", "mask_truncated_completions", "gvpo_anchor"}
"""Options of ``algorithm.grpo_ext`` likewise."""


class _Weights(NamedTuple):
    """−∂L/∂log π at the first update on a rollout, whose policy is the old one, and at a later one."""

    first: Tensor
    later: Tensor

    @classmethod
    def of(cls, compute: Callable[[Rollout], Tensor], rollout: Rollout) -> _Weights:
        """Compute both."""
        return cls(*map(compute, (replace(rollout, log_prob=rollout.old_log_prob), rollout)))

    @property
    def are_right(self) -> bool:
        """Whether a token's log-prob changes the loss, by a finite number at both updates."""
        finite = self.first.isfinite().all() and self.later.isfinite().all()
        return bool(finite and self.later.any())

    def distance(self, other: _Weights) -> float:
        """‖g − other‖/‖other‖, the larger of the two updates'; infinite for NaN."""
        return max(map(_distance, self, other))


def _distance(found: Tensor, expected: Tensor) -> float:
    away = float((found - expected).norm() / expected.norm().clamp(min=1e-300))
    return away if math.isfinite(away) else math.inf


def _weights(config: DictConfig, rollout: Rollout) -> _Weights:
    training = Training(config)
    return _Weights.of(lambda each: training.weights(training.rows(each)), rollout)


def _quietly(config: DictConfig, rollout: Rollout) -> _Weights | None:
    """Return the weights; None where verl or an estimator or loss raises."""
    try:
        return _weights(config, rollout)
    except Exception:  # noqa: BLE001  # the caller asks whether it does
        return None


def _promised(algorithm: Algorithm, config: DictConfig, rollout: Rollout) -> _Weights:
    """Return what the record of a preset says of a rollout."""
    training = Training(config)
    return _Weights.of(lambda each: reference_weights(algorithm, training, each), rollout)


class _Probe(NamedTuple):
    """A configuration as composed and of the probe, its rollout, and what the command says."""

    config: DictConfig
    own: DictConfig
    rollout: Rollout
    words: Sequence[str]
    algorithm: Algorithm | None


def judgements(config: DictConfig, words: Sequence[str] = ()) -> Iterator[Finding]:
    """Yield the findings about what would be trained, without notes.

    Args:
        config: as composed.
        words: of the command line, which the messages tell from values of a file.
    """
    import_external_libs(setting(config, "actor_rollout_ref.model.external_lib"))  # as the workers do
    if not _is_registered(config):
        return
    algorithm, own = ALGORITHMS.get(str(setting(config, _PRESET))), of_probe(config)
    papers = own if algorithm is None else changed(own, _papers_values(algorithm))
    probe = _Probe(config, own, rollout_for(own, papers), words, algorithm)
    try:
        training = Training(own)
    except Exception:  # noqa: BLE001  # verl's own validation speaks of what its classes refuse
        return
    try:
        found, rows = _weights(own, probe.rollout), training.rows(probe.rollout)
    except Exception as error:  # noqa: BLE001  # whatever an estimator or a loss raises at the first update
        yield Finding("refused", *_refused(probe, error))
        return
    if algorithm is not None:
        try:
            problems = [*_another(probe, algorithm, papers, found)]
        except SettingError:  # an option outside of its range, of which another check speaks
            problems = []
        yield from (Finding("gradient", Severity.WARNING, each) for each in problems)
    if not found.are_right:
        fault = "no gradient" if found.later.isfinite().all() else "a gradient that is not finite"
        severity = Severity.ERROR if catalogue.knows(config) else Severity.WARNING
        yield Finding("no-gradient", severity, _fault(probe, f"has {fault}, on the probe's batch"))
    yield from (Finding("cut", Severity.WARNING, each) for each in _cut(config, training, rows, found.later))
    if several_updates(config) and found.later.any():
        shifted = training.weights(replace(rows, old_log_prob=rows.old_log_prob + 0.1))
        if torch.equal(shifted, found.later):
            yield Finding("ratio", Severity.WARNING, _without_ratio(config))


def _is_registered(config: DictConfig) -> bool:
    """Whether this process has the estimator and the loss; another check speaks of unknown names."""
    estimators = [str(getattr(each, "value", each)) for each in ADV_ESTIMATOR_REGISTRY]
    return setting(config, ESTIMATOR) in estimators and setting(config, LOSS) in POLICY_LOSS_REGISTRY


def _papers_values(algorithm: Algorithm) -> dict[str, Any]:
    """Return key → value as written for what a record does not leave to its user, in `_SECTIONS`."""
    free, leaves = catalogue.left_to_user(algorithm.name), PRESETS[algorithm.name].leaves
    values = {key: leaves[key] for key in leaves if key.startswith(_SECTIONS) and key not in free}
    estimator = algorithm.estimator
    if isinstance(estimator, Estimator) and estimator.baseline is None and not estimator.several_rewards:
        values.setdefault(f"{SECTION}.scale_rewards", "group")
    return values


def _refused(probe: _Probe, error: Exception) -> tuple[Severity, Problem]:
    """Return what verl, this package or another one raises at the first update, and the word that does it."""
    if isinstance(error, SettingError):
        return Severity.ERROR, error.problem
    said, config = f"{type(error).__name__}: {error}", probe.config
    estimator, loss = ADV_ESTIMATOR_REGISTRY.get(setting(config, ESTIMATOR)), setting(config, LOSS)
    modules = {getattr(each, "__module__", "verl") for each in (estimator, POLICY_LOSS_REGISTRY[loss])}
    if others := sorted(each for each in modules if each.partition(".")[0] not in _KNOWN):
        seen = f"{_pair(config)} could not be tried, for {' and '.join(others)} raises on a synthetic batch "
        return Severity.WARNING, Problem("", None, seen=f"{seen}{said}; the training goes on")
    return Severity.ERROR, _fault(probe, f"raises at the first update {said}")


def _pair(config: DictConfig) -> str:
    return f"{ESTIMATOR}={setting(config, ESTIMATOR)} with {LOSS}={setting(config, LOSS)}"


def _fault(probe: _Probe, fault: str) -> Problem:
    """Return the problem of the first word without which the weights are right, or of estimator and loss."""
    for key, usual in _set_by(probe.words, probe.own, None, probe.algorithm):
        trial = _quietly(changed(probe.own, {key: usual}), probe.rollout)
        if trial is not None and trial.are_right:
            why = f"the training then {fault}"
            return Problem(key, setting(probe.config, key), _without(key), why)
    fix = "the same command with other values of its options"
    return Problem(LOSS, setting(probe.config, LOSS), fix, seen=f"{_pair(probe.config)} {fault}")


def _cut(config: DictConfig, training: Training, rows: Rollout, whole: Tensor) -> Iterator[Problem]:
    loss = catalogue.loss_of(config)
    if isinstance(loss, TokenLoss) and loss.average is not None and loss.average.depends_on_split:
        return
    away = max(_distance(training.weights(rows, cut(rows.lengths, *each)), whole) for each in _CUTS)
    if away <= TOLERANCE:
        return
    if setting(config, SCALE_FACTOR) is None and setting(config, AGGREGATION) == CONSTANT_LENGTH.mode:
        key, line = SCALE_FACTOR, f"{SCALE_FACTOR}=${{data.max_response_length}}"
    else:
        key, line = LOSS, loss.exact_preset if isinstance(loss, VerlsLoss) else ""
    why = "the gradient depends on how a batch is cut into micro-batches and ranks: "
    why += f"{_percent(away)} away from the whole batch's, on the probe's batch"
    yield Problem(key, setting(config, key), Line(line) if line else "", why=why)


def _without_ratio(config: DictConfig) -> Problem:
    key = f"{ACTOR}.ppo_mini_batch_size"
    one_part = [f"{parts_of_step_key(config)}=1"] if parts_of_step(config) > 1 else []
    return Problem(
        key,
        setting(config, key),
        Line(f"{key}=${{data.train_batch_size}}", f"{ACTOR}.ppo_epochs=1", *one_part),
        why=f"a rollout is then used for several updates, and {LOSS}={setting(config, LOSS)} has no "
        "ratio that corrects for a policy that has moved",
        valid="one update on a rollout",
    )


def _another(probe: _Probe, algorithm: Algorithm, papers: DictConfig, found: _Weights) -> Iterator[Problem]:
    config, promise = probe.config, _promised(algorithm, papers, probe.rollout)

    def keeps(weights: _Weights | None) -> bool:
        return weights is not None and weights.distance(promise) <= TOLERANCE

    if keeps(found):
        return
    seen = (
        f"+algo={algorithm.name} does not name what will be trained: on the probe's batch the gradient is "
        f"{_percent(found.distance(promise))} away from that of {algorithm.name} ({algorithm.paper})"
    )
    causes = {}
    if keeps(_quietly(papers, probe.rollout)):
        for key, value in _papers_values(algorithm).items():
            now = setting(probe.own, key)
            is_other = now != setting(papers, key)
            if is_other and not keeps(_quietly(changed(papers, {key: now}), probe.rollout)):
                causes[key] = as_typed(value), as_typed(setting(config, key))
    if not causes:
        seen += f", at the preset's own values: {ESTIMATOR}={setting(config, ESTIMATOR)} or {LOSS}="
        seen += f"{setting(config, LOSS)} is another function than the record's, or verl's have changed"
        yield Problem(_PRESET, algorithm.name, "grpo-verl-ext doctor", seen=seen)
        return
    of_files = [key for key in causes if probe.words and key not in {*map(key_of, probe.words)}]
    pairs = "; ".join(
        f"{key} is {now}{' (by a file)' if key in of_files else ''}, in the preset {value}"
        for key, (value, now) in causes.items()
    )
    typed = tuple(key for key in causes if key not in of_files)
    words = " ".join(f"{key}={causes[key][1]}" for key in typed)
    put_in = [f"{key}={causes[key][0]}" for key in of_files]
    fix = Line(*put_in, without=typed, more="" if put_in else f"the same command without {words}")
    yield Problem(_PRESET, algorithm.name, fix, seen=f"{seen}: {pairs}")


def _percent(share: float) -> str:
    return f"{share:.1%}" if share < 0.1 else f"{share:.0%}" if share < 1e3 else "more than 1000 times"


def unread(config: DictConfig, words: Sequence[str], default: DictConfig) -> Iterator[Finding]:
    """Yield a note for each word of the command line that changes nothing of the gradient.

    Args:
        config: as composed.
        words: of the command line.
        default: verl's own configuration.
    """
    if not _is_registered(config):
        return
    own, algorithm = of_probe(config), ALGORITHMS.get(str(setting(config, _PRESET)))
    usual = dict(_set_by(words, own, default, algorithm))
    trials = {key: changed(own, {key: value}) for key, value in usual.items()}
    rollout = rollout_for(own, *trials.values())
    found = _quietly(own, rollout)  # `judgements` reports why there is nothing
    for key, trial in trials.items() if found else ():
        without = None if setting(trial, key) == setting(own, key) else _quietly(trial, rollout)
        if found and without and not found.distance(without):
            why = "it changes nothing of what is trained, on the probe's batch"
            yield Finding("unread", Severity.NOTE, Problem(key, setting(config, key), _without(key), why))


def _set_by(
    words: Sequence[str], config: DictConfig, default: DictConfig | None, algorithm: Algorithm | None
) -> Iterator[tuple[str, Any]]:
    """Yield the keys of words that a gradient could read, with their values without it, or ``...``."""
    leaves = PRESETS[algorithm.name].leaves if algorithm is not None else {}
    for key in dict.fromkeys(map(key_of, words)):
        section, _, name = key.rpartition(".")
        reads = {SECTION: name in _OF_ESTIMATOR, ACTOR: name in _OF_LOSS}
        if key == "algorithm.gdpo_reward_keys" and catalogue.learns_from_several_rewards(config):
            continue  # the synthetic rewards have no names
        if not reads.get(section, key.startswith(("algorithm.", POLICY_LOSS))) or key.startswith(_UNSEEN):
            continue
        of_verl = {} if default is None else OmegaConf.select(default, section) or {}
        usual = leaves.get(key, of_verl.get(name, ...))
        if usual is ... or setting(config, key) != usual:
            yield key, usual


def _without(key: str) -> Line:
    return Line(without=(key,), more=f"the same command without {key}")


def presets_on(default: DictConfig) -> Iterator[tuple[str, float]]:
    """Yield each preset, and how far its gradient by this verl is from its record's; NaN if that is none.

    Args:
        default: verl's own configuration.
    """
    for name, preset in PRESETS.items():
        config = changed(of_probe(default), preset.leaves)
        rollout = rollout_for(config)
        found, record = _quietly(config, rollout), ALGORITHMS[name]
        promise = found and _promised(record, config, rollout)
        away = found.distance(promise) if found and promise else math.inf
        yield name, math.nan if promise and not promise.are_right else away
