"""Judge what a configuration trains by its gradient on the synthetic rollout.

Another gradient than that of the algorithm which the command names; none, or one that is not finite; one that
depends on the cut; several updates without a ratio; a refusal of verl's or of ours, before a rollout; and, as
notes, settings that change nothing.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor
from verl.trainer.ppo.core_algos import get_adv_estimator_fn, get_policy_loss_fn
from verl.utils.import_utils import import_external_libs

from grpo_verl_ext import catalogue
from grpo_verl_ext.catalogue import ALGORITHMS, PRESETS, Algorithm, TokenLoss, VerlsLoss
from grpo_verl_ext.catalogue.record import CLIPS
from grpo_verl_ext.proof import differing, verls_defaults
from grpo_verl_ext.proof.batch import Rollout
from grpo_verl_ext.proof.gradient import Training, changed, of_probe, rollout_for
from grpo_verl_ext.proof.reference import reference_weights
from grpo_verl_ext.utils import keys
from grpo_verl_ext.utils.errors import Finding, Line, Problem, SettingError, Severity, as_typed
from grpo_verl_ext.utils.keys import ACTOR, ESTIMATOR, LOSS, POLICY_LOSS, SCALE_FACTOR, SECTION, setting
from grpo_verl_ext.verl_plugin.mini_batch.plan import parts_of_step, several_updates

TOLERANCE = 1e-6
"""Largest relative distance of two gradients that float32 in verl's estimators explains."""
_UNSEEN = (
    *("algorithm.filter_groups", "algorithm.pf_ppo"),
    *(f"algorithm.kl_ctrl.{name}" for name in ("type", "horizon", "target_kl")),
    *(f"{POLICY_LOSS}.{name}" for name in ("_target_", "max_response_length")),
)
"""Settings that act elsewhere than in a gradient on one rollout."""
_OF_LOSS = {*CLIPS, *["tau_pos", "tau_neg", "entropy_coeff", "kl_loss_coef", "kl_loss_type"]}
_OF_LOSS |= {"loss_agg_mode", "loss_scale_factor", "use_prefix_grouper"}
"""verl's keys of ``actor`` that a loss, or a term beside it, could read."""


def _weights(training: Training, rollout: Rollout, record: Algorithm | None = None) -> Tensor:
    """Return the weights of tokens by verl, or by a record whose preset the training has: (2, 2 N).

    The first row is the first update on the rollout, where the policy is the old one, the second a later one.
    """
    updates = (replace(rollout, log_prob=rollout.old_log_prob), rollout)
    if record is not None:
        return torch.stack([reference_weights(record, training, each) for each in updates])
    return torch.stack([training.weights(training.rows(each)) for each in updates])


def _quietly(config: DictConfig, rollout: Rollout) -> Tensor | None:
    """Return the weights; None where verl or an estimator or loss raises."""
    try:
        return _weights(Training(config), rollout)
    except Exception:  # noqa: BLE001  # the caller asks whether it does
        return None


def _are_right(weights: Tensor) -> bool:
    """Whether a token's log-prob changes the loss, by a finite number at both updates."""
    return bool(weights.isfinite().all() and weights[1].any())


def _distance(found: Tensor | None, expected: Tensor) -> float:
    """‖found − expected‖/‖expected‖, the larger of the two updates'; infinite for NaN, and for None."""
    if found is None:
        return math.inf
    away = (found - expected).norm(dim=-1) / expected.norm(dim=-1).clamp(min=1e-300)
    return float(away.max()) if away.isfinite().all() else math.inf


def _percent(share: float) -> str:
    return f"{share:.1%}" if share < 0.1 else f"{share:.0%}" if share < 1e3 else "more than 1000 times"


class _Probe:
    """A configuration as composed, of the probe, and with its preset's values, and a rollout for both."""

    def __init__(self, config: DictConfig, words: Sequence[str]) -> None:
        self.config, self.words = config, words
        self.algorithm = ALGORITHMS.get(str(setting(config, keys.PRESET)))
        free = catalogue.left_to_user(self.algorithm.name) if self.algorithm else set()
        sections = ("algorithm.", f"{ACTOR}.")  # with the keys on which a gradient on one rollout depends
        both = {key: each for key, each in differing(config).items() if key.startswith(sections)}
        self.others = {key: each for key, each in both.items() if key not in free}
        self.names = f"{ESTIMATOR}={setting(config, ESTIMATOR)} with {LOSS}={setting(config, LOSS)}"
        self.own = self.papers = of_probe(config)
        if self.others:
            self.papers = of_probe(changed(config, {key: own for key, (own, _) in self.others.items()}))
        self.rollout = rollout_for(self.own, self.papers)


def judgements(config: DictConfig, words: Sequence[str] = ()) -> Iterator[Finding]:
    """Yield the findings about what would be trained, without notes."""
    import_external_libs(setting(config, "actor_rollout_ref.model.external_lib"))  # as the workers do
    probe = _Probe(config, words)
    try:
        both = get_adv_estimator_fn(setting(config, ESTIMATOR)), get_policy_loss_fn(setting(config, LOSS))
        training = Training(probe.own)
    except Exception:  # noqa: BLE001  # other checks speak of unknown names and of what verl's classes refuse
        return
    try:
        found = _weights(training, probe.rollout)
    except SettingError as error:
        yield Finding("refused", Severity.ERROR, error.problem)
        return
    except Exception as error:  # noqa: BLE001  # whatever an estimator or a loss raises at the first update
        said = f"{type(error).__name__}: {error}"
        modules = {getattr(each, "__module__", "verl") for each in both}
        # Of other packages' functions an error may be a fault of the probe's batch.
        known = {"verl", "grpo_verl_ext", "functools"}
        if others := sorted(each for each in modules if each.partition(".")[0] not in known):
            seen = f"{probe.names} could not be tried, for {' and '.join(others)} raises {said}, on a "
            seen += "synthetic batch; the training goes on"
            yield Finding("refused", Severity.WARNING, Problem("", None, seen=seen))
            return
        yield Finding("refused", Severity.ERROR, _fault(probe, f"raises {said}, at the first update"))
        return
    yield from _another(probe, training, found)
    if not _are_right(found):
        fault = "no gradient" if found[1].isfinite().all() else "a gradient that is not finite"
        severity = Severity.ERROR if catalogue.knows(config) else Severity.WARNING
        yield Finding("no-gradient", severity, _fault(probe, f"has {fault}, on the probe's batch"))
    yield from _in_parts(config, training, training.rows(probe.rollout), found[1])


def _fault(probe: _Probe, fault: str) -> Problem:
    """Return the problem of the first word without which the weights are right, or of estimator and loss."""
    for key, usual in _set_by(probe.words, probe.own, None):
        trial = _quietly(changed(probe.own, {key: usual}), probe.rollout)
        if trial is not None and _are_right(trial):
            why = f"the training then {fault}"
            fix = Line(without=(key,), more=f"the same command without {key}")
            return Problem(key, setting(probe.config, key), fix, why)
    line = "the same command with other values of its options"
    return Problem(LOSS, setting(probe.config, LOSS), line, seen=f"{probe.names} {fault}")


def _in_parts(config: DictConfig, training: Training, rows: Rollout, whole: Tensor) -> Iterator[Finding]:
    """Yield what is found of a rollout that is split, and of one that is used for several updates."""
    loss, name = catalogue.loss_of(config), setting(config, LOSS)
    may_depend = isinstance(loss, TokenLoss) and loss.average is not None and loss.average.depends_on_split
    cuts = (("uneven", 1), ("dynamic", 2))
    away = max(_distance(training.weights(rows, rows.cut(*each)), whole) for each in cuts)
    if away > TOLERANCE and not may_depend:
        key, line = LOSS, loss.exact_preset if isinstance(loss, VerlsLoss) else ""
        is_of_budget = setting(config, keys.AGGREGATION) == "seq-mean-token-sum-norm"
        if is_of_budget and setting(config, SCALE_FACTOR) is None:
            key, line = SCALE_FACTOR, f"{SCALE_FACTOR}=${{data.max_response_length}}"
        why = "the gradient depends on how a batch is split into micro-batches and ranks: "
        why += f"{_percent(away)} away from the whole batch's, on the probe's batch"
        problem = Problem(key, setting(config, key), Line(line) if line else "", why)
        yield Finding("cut", Severity.WARNING, problem)
    older = {name: getattr(rows, name) + 0.1 for name in ("old_log_prob", "rollout_log_prob")}
    shifted = replace(rows, **older)
    if several_updates(config) and whole.any() and torch.equal(training.weights(shifted), whole):
        key, (parts_key, parts) = f"{ACTOR}.ppo_mini_batch_size", parts_of_step(config)
        why = f"a rollout is then used for several updates, and {LOSS}={name} has no ratio that corrects for "
        why += "a policy that has moved"
        one_part = [f"{parts_key}=1"] if parts > 1 else []
        fix = Line(f"{key}=${{data.train_batch_size}}", f"{ACTOR}.ppo_epochs=1", *one_part)
        problem = Problem(key, setting(config, key), fix, why, valid="one update on a rollout")
        yield Finding("ratio", Severity.WARNING, problem)


def _another(probe: _Probe, training: Training, found: Tensor) -> Iterator[Finding]:
    """Yield the finding of another gradient than the record's, with the values of which each makes one."""
    config, papers, rollout, algorithm = probe.config, probe.papers, probe.rollout, probe.algorithm
    if algorithm is None:
        return
    try:
        promise = _weights(Training(papers) if probe.others else training, rollout, algorithm)
    except SettingError:  # an option outside of its range, of which another check speaks
        return
    if (away := _distance(found, promise)) <= TOLERANCE:
        return
    seen = f"preset {algorithm.name} does not name what will be trained: its gradient on a probe's batch is "
    seen += f"{_percent(away)} away from that of {algorithm.name} ({algorithm.paper})"
    causes = {}
    if _distance(_quietly(papers, rollout), promise) <= TOLERANCE:
        for key, both in probe.others.items():
            trial = changed(papers, {key: setting(probe.own, key)})
            if _distance(_quietly(trial, rollout), promise) > TOLERANCE:
                causes[key] = [as_typed(each) for each in both]
    if not causes:
        seen += f", at the preset's own values: {ESTIMATOR}={setting(config, ESTIMATOR)} or {LOSS}="
        seen += f"{setting(config, LOSS)} is another function than the record's, or verl's have changed"
        problem = Problem(keys.PRESET, algorithm.name, "grpo-verl-ext doctor", seen=seen)
        yield Finding("gradient", Severity.WARNING, problem)
        return
    of_files = [key for key in causes if probe.words and key not in {*map(keys.key_of, probe.words)}]
    pairs = "; ".join(
        f"{key} is {now}{' (by a file)' if key in of_files else ''}, in the preset {value}"
        for key, (value, now) in causes.items()
    )
    typed = tuple(key for key in causes if key not in of_files)
    words = " ".join(f"{key}={causes[key][1]}" for key in typed)
    put_in = [f"{key}={causes[key][0]}" for key in of_files]
    fix = Line(*put_in, without=typed, more="" if put_in else f"the same command without {words}")
    problem = Problem(keys.PRESET, algorithm.name, fix, seen=f"{seen}: {pairs}")
    yield Finding("gradient", Severity.WARNING, problem)


def unread(config: DictConfig, words: Sequence[str]) -> Iterator[Finding]:
    """Yield a note for each word of the command line that changes nothing of the gradient."""
    own = of_probe(config)
    trials = {key: changed(own, {key: value}) for key, value in _set_by(words, own, verls_defaults())}
    rollout = rollout_for(own, *trials.values())
    found = _quietly(own, rollout) if trials else None
    if found is None:  # `judgements` reports why
        return
    for key, trial in trials.items():
        if setting(trial, key) != setting(own, key) and not _distance(_quietly(trial, rollout), found):
            why = "it changes nothing of what is trained, on the probe's batch"
            fix = Line(without=(key,), more=f"the same command without {key}")
            yield Finding("unread", Severity.NOTE, Problem(key, setting(config, key), fix, why))


def _set_by(
    words: Sequence[str], config: DictConfig, default: DictConfig | None
) -> Iterator[tuple[str, Any]]:
    """Yield the keys of words that a gradient could read, with their values without it, or ``...``."""
    preset = str(setting(config, keys.PRESET))
    leaves = PRESETS[preset].leaves if preset in ALGORITHMS else {}
    for key in dict.fromkeys(map(keys.key_of, words)):
        section, _, name = key.rpartition(".")
        of_estimator = ("scale_rewards", "mask_truncated_completions", "gvpo_anchor")
        reads = {SECTION: name in of_estimator, ACTOR: name in _OF_LOSS}
        if key == "algorithm.gdpo_reward_keys" and catalogue.learns_from_several_rewards(config):
            continue  # the synthetic rewards have no names
        if not reads.get(section, key.startswith(("algorithm.", POLICY_LOSS))) or key.startswith(_UNSEEN):
            continue
        of_verl = {} if default is None else OmegaConf.select(default, section) or {}
        usual = leaves.get(key, of_verl.get(name, ...))
        if usual is ... or setting(config, key) != usual:
            yield key, usual


def presets_on_this_verl() -> Iterator[tuple[str, float]]:
    """Yield each preset, and how far its gradient by this verl is from its record's; NaN if that is none."""
    own = of_probe(verls_defaults())
    for name, preset in PRESETS.items():
        config = changed(own, preset.leaves)
        rollout = rollout_for(config)
        found = _quietly(config, rollout)
        if found is None:  # then this verl has no gradient for it
            yield name, math.inf
            continue
        promise = _weights(Training(config), rollout, ALGORITHMS[name])
        yield name, _distance(found, promise) if _are_right(promise) else math.nan
