"""Judge the declared comparisons of a grid from its finished runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

import numpy as np

from grpo_verl_ext.ablation.declaration.comparisons import Comparison, Declaration
from grpo_verl_ext.ablation.running.results import Results
from grpo_verl_ext.ablation.statistics.controls import check_results
from grpo_verl_ext.ablation.statistics.measures import costs
from grpo_verl_ext.ablation.statistics.pairs import Pairs, pairs_of
from grpo_verl_ext.ablation.statistics.power import MANY, starts_needed
from grpo_verl_ext.ablation.statistics.sentences import measured, verdict_reason
from grpo_verl_ext.ablation.statistics.verdicts import (
    CheckResult,
    Outcome,
    Verdict,
    declared_p,
    holm,
    outcome_of,
)


def judge(results: Results) -> tuple[list[Verdict], list[CheckResult]]:
    """Verdicts and checks in the order of their declaration, the control first; empty without one.

    A missed control makes every verdict blind; a missed check makes each comparison of its variant not
    exercised.
    """
    checks = check_results(results)
    comparisons = results.settings.declaration.comparisons
    if not comparisons:
        return [], checks
    primary, margin = results.settings.declaration.subject
    pairs = [pairs_of(results, each, primary, margin) for each in comparisons]
    p_values = [
        declared_p(each.expected, own.p, own.p_equal) for each, own in zip(comparisons, pairs, strict=True)
    ]
    return [
        _judged(results, comparison, own, float(adjusted), checks)
        for comparison, own, adjusted in zip(comparisons, pairs, holm(np.array(p_values)), strict=True)
    ], checks


def _judged(
    results: Results, comparison: Comparison, pairs: Pairs, adjusted: float, checks: Sequence[CheckResult]
) -> Verdict:
    declared = results.settings.declaration
    primary, margin = declared.subject
    tested = _tested(declared, comparison, pairs, adjusted)
    outcome, why = _gate(comparison, checks) or (tested.outcome, pairs.why)
    minutes = _minutes_needed(results, comparison, tested)
    verdict = replace(tested, outcome=outcome, minutes_needed=minutes)
    head = f"{measured(comparison, primary, pairs, declared.alpha)}: {outcome.value}"
    return replace(verdict, sentence=f"{head}; {why or verdict_reason(verdict, margin)}")


def _tested(declared: Declaration, comparison: Comparison, pairs: Pairs, adjusted: float) -> Verdict:
    """The verdict of the tests, without sentence and minutes."""
    _, margin = declared.subject
    outcome = outcome_of(
        comparison.expected,
        pairs.difference or 0.0,
        p=pairs.p,
        p_equal=pairs.p_equal,
        adjusted_p=adjusted,
        alpha=declared.alpha,
        comparisons=len(declared.comparisons),
    )
    low, high = pairs.interval(declared.alpha) or (None, None)
    tested = pairs.why is None
    return Verdict(
        variant=comparison.variant,
        against=comparison.against,
        expected=comparison.expected,
        outcome=outcome,
        starts=pairs.starts,
        difference=pairs.difference,
        low=low,
        high=high,
        p=pairs.p if tested else None,
        adjusted_p=adjusted if tested else None,
        p_equal=pairs.p_equal if tested else None,
        by_seed=pairs.by_seed,
        starts_needed=starts_needed(margin, pairs.sd, declared.level) if tested else None,
        minutes_needed=None,
        sentence="",
    )


def _gate(comparison: Comparison, checks: Sequence[CheckResult]) -> tuple[Outcome, str] | None:
    """The outcome that a missed control or check leaves, and why; None: the tests decide."""
    if any(each.is_control and not each.passed for each in checks):
        return Outcome.BLIND, "the positive control was missed, so that nothing is claimed"
    missed = [
        each
        for each in checks
        if not each.is_control and not each.passed and each.variant in comparison.variants
    ]
    if missed:
        names = "; ".join(f"{each.name}, was missed by {each.variant}" for each in missed)
        return Outcome.NOT_EXERCISED, names
    return None


def _minutes_needed(results: Results, comparison: Comparison, verdict: Verdict) -> float | None:
    """Minutes of steps that the missing starts of the variants would take; None where it is unknown."""
    more = (verdict.starts_needed or 0) - verdict.starts
    seconds = [
        [costs(run.metrics)["seconds"] for run in results.finished(name)] for name in comparison.variants
    ]
    if more <= 0 or verdict.starts_needed == MANY or not all(map(any, seconds)):
        return None
    return more * math.fsum(map(fmean, seconds)) / 60
