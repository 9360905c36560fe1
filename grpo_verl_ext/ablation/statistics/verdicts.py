"""Verdicts on the declared comparisons of a grid, after its positive control and its manipulation checks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from statistics import fmean

import numpy as np

from grpo_verl_ext.ablation.declaration.comparisons import Check, Comparison, Control, Declaration, Primary
from grpo_verl_ext.ablation.declaration.grid import AblationError, GridSettings
from grpo_verl_ext.ablation.running.results import CheckResult, Results, read_any
from grpo_verl_ext.ablation.statistics.measures import costs_of, values_of
from grpo_verl_ext.ablation.statistics.pairs import (
    Pairs,
    comparison_name,
    figures,
    holm,
    measured,
    p_text,
    pairs_of,
)
from grpo_verl_ext.ablation.statistics.power import MANY, POWER, starts_needed


class Outcome(str, Enum):
    """What a declared comparison came to."""

    SHOWN = "shown"
    OPPOSITE = "opposite"
    EQUAL = "equal within the margin"
    UNDECIDED = "undecided"
    BLIND = "blind"
    """The positive control was missed: nothing is claimed."""
    NOT_EXERCISED = "not exercised"
    """A manipulation check was missed."""


@dataclass(frozen=True)
class Verdict:
    """One declared comparison: a variant minus another over their common starts, paired by seed."""

    variant: str
    against: str
    expected: str
    """higher, lower, different or equal."""
    outcome: Outcome
    starts: int
    """Number of common starts."""
    difference: float | None
    """Mean of ``by_seed``."""
    low: float | None
    high: float | None
    """Interval of level 1 − alpha: Student's t on the differences."""
    p: float | None
    """Two-sided paired t-test."""
    adjusted_p: float | None
    """After Holm over all comparisons; of ``p_equal`` where ``expected`` is equal."""
    p_equal: float | None
    """Equivalence within ±margin: the larger p of two one-sided paired t-tests."""
    by_seed: dict[int, float]
    """Seed → difference."""
    starts_needed: int | None
    """Starts with which a difference of ``margin`` is found with 80 %; None where the spread is unknown."""
    minutes_needed: float | None
    """Minutes of steps that the missing starts of both variants would take; None if none is missing."""
    sentence: str


def declared_p(expected: str, p: float, p_equal: float) -> float:
    """The p-value of what is expected, which enters `holm`."""
    return p_equal if expected == "equal" else p


def outcome_of(
    expected: str,
    difference: float,
    *,
    p: float,
    p_equal: float,
    adjusted_p: float,
    alpha: float,
    comparisons: int,
) -> Outcome:
    """Decide one comparison.

    What is expected is shown at ``adjusted_p`` ≤ alpha, and its opposite direction likewise, the test being
    two-sided. What was not expected (equivalence, or a difference where equal was expected) is not in
    Holm's family: it takes p ≤ alpha / comparisons, so that nothing is easier to claim than what was
    declared. NaN decides nothing.
    """
    found, single = adjusted_p <= alpha, alpha / comparisons
    if expected == "equal":
        if found:
            return Outcome.SHOWN
        return Outcome.OPPOSITE if p <= single else Outcome.UNDECIDED
    if found:
        as_expected = expected == "different" or (difference > 0) == (expected == "higher")
        return Outcome.SHOWN if as_expected else Outcome.OPPOSITE
    return Outcome.EQUAL if p_equal <= single else Outcome.UNDECIDED


def with_control(results: Results) -> Results:
    """The results with the control of another grid, where one is declared and not read yet."""
    control = results.settings.control
    if control is None or control.grid is None or results.control is not None:
        return results
    return replace(results, control=_control_of(control.grid))


def missing_control(settings: GridSettings) -> str | None:
    """Say that the control is that of another grid, which has not shown it; None if nothing is missing."""
    if settings.control is None or settings.control.grid is None:
        return None
    control = _control_of(settings.control.grid)
    if control.passed:
        return None
    fix = "grpo-verl-ext ablate run <file of that grid>"
    return f"{control.sentence}. Without it every verdict is blind. Type: {fix}"


def _control_of(grid: str) -> CheckResult:
    """The own control of another grid; missed where it has none or cannot be read."""
    why = "that grid declares no control of its own"
    try:
        other, _ = read_any(Path(grid))
    except AblationError as error:
        why = str(error)
    else:
        control, primary = other.settings.control, other.settings.primary
        if control is not None and control.variant is not None and primary is not None:
            found = _own_control(other, control, primary)
            return replace(found, name=f"{found.name} (of {grid})", sentence=f"{found.sentence} (of {grid})")
    name = f"positive control of {grid}"
    return CheckResult(name, grid, None, passed=False, is_control=True, sentence=f"{name}: missed; {why}")


def _own_control(results: Results, control: Control, primary: Primary) -> CheckResult:
    """Whether the control's difference is significant, at alpha, in its expected direction."""
    declared = results.settings.declaration
    comparison = control.comparison(declared.baseline)
    expected, alpha = comparison.expected, declared.alpha
    pairs = pairs_of(results, comparison, primary, declared.margin or math.nan)
    tests = {"p": pairs.p, "p_equal": math.nan, "adjusted_p": pairs.p}
    outcome = outcome_of(expected, pairs.difference or 0.0, **tests, alpha=alpha, comparisons=1)
    passed = outcome is Outcome.SHOWN
    said = "shown" if passed else f"missed; {expected} was expected"
    sentence = f"{measured(comparison, primary, pairs, alpha)}: {said} ({pairs.why or p_text(pairs.p)})"
    return CheckResult(
        name=f"positive control: {comparison_name(comparison, primary)}, {expected}",
        variant=comparison.variant,
        value=pairs.difference,
        passed=passed,
        is_control=True,
        sentence=f"positive control {sentence}",
    )


def _check_results(results: Results, declared: Declaration) -> list[CheckResult]:
    """The control and each check of each variant, in the order of their declaration."""
    found = []
    if results.control is not None:
        found.append(results.control)
    elif declared.control is not None and declared.primary is not None:
        found.append(_own_control(results, declared.control, declared.primary))
    for check in declared.checks:
        found += [_checked(results, check, variant) for variant in check.variants or declared.variants]
    return found


def _checked(results: Results, check: Check, variant: str) -> CheckResult:
    values = values_of(results, check.metric, check.measure)[variant]
    own = [values[seed] for seed in results.settings.declaration.usable if seed in values]
    mean = fmean(own) if own else math.nan
    unknown = math.isnan(mean)
    passed = mean >= check.at_least
    name = f"{check.metric}, {check.measure.replace('_', ' ')}, at least {check.at_least:g}"
    said = f"{'not measured' if unknown else figures(mean)}, {'passed' if passed else 'missed'}"
    return CheckResult(
        name,
        variant,
        None if unknown else mean,
        passed,
        is_control=False,
        sentence=f"{variant}: {name}: {said}",
    )


def judge(results: Results) -> tuple[list[Verdict], list[CheckResult]]:
    """Verdicts and checks in the order of their declaration, the control first; empty without one.

    A missed control makes every verdict blind; a missed check makes each comparison of its variant not
    exercised.
    """
    declared = results.settings.declaration
    checks = _check_results(results, declared)
    comparisons = declared.comparisons
    if not comparisons:
        return [], checks
    pairs = [pairs_of(results, each, *declared.subject) for each in comparisons]
    p_values = [
        declared_p(each.expected, own.p, own.p_equal) for each, own in zip(comparisons, pairs, strict=True)
    ]
    costs = costs_of(results)
    verdicts = []
    for comparison, own, adjusted in zip(comparisons, pairs, holm(np.array(p_values)), strict=True):
        seconds = [costs[name]["seconds"] if name in costs else 0.0 for name in comparison.variants]
        tested = _tested(declared, comparison, own, float(adjusted))
        timed = replace(tested, minutes_needed=_minutes_needed(seconds, tested))
        verdicts.append(_concluded(declared, comparison, own, timed, checks))
    return verdicts, checks


def _concluded(
    declared: Declaration,
    comparison: Comparison,
    pairs: Pairs,
    tested: Verdict,
    checks: Sequence[CheckResult],
) -> Verdict:
    """The verdict with what the checks leave of its outcome, and its sentence."""
    primary, margin = declared.subject
    outcome, why = _gate(comparison, checks) or (tested.outcome, pairs.why)
    verdict = replace(tested, outcome=outcome)
    head = f"{measured(comparison, primary, pairs, declared.alpha)}: {outcome.value}"
    return replace(verdict, sentence=f"{head}; {why or _reason(verdict, margin)}")


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
    missed = [each for each in checks if not each.passed]
    if any(each.is_control for each in missed):
        return Outcome.BLIND, "the positive control was missed, so that nothing is claimed"
    own = [
        f"{each.name}, was missed by {each.variant}" for each in missed if each.variant in comparison.variants
    ]
    return (Outcome.NOT_EXERCISED, "; ".join(own)) if own else None


def _minutes_needed(seconds: list[float], verdict: Verdict) -> float | None:
    """Minutes of steps that the missing starts of the variants would take; None where it is unknown."""
    more = (verdict.starts_needed or 0) - verdict.starts
    if more <= 0 or verdict.starts_needed == MANY or not all(seconds):
        return None
    return more * math.fsum(seconds) / 60


_OTHER = {"higher": "lower", "lower": "higher"}


def _reason(verdict: Verdict, margin: float) -> str:
    """The rest of the sentence of a verdict that the tests decided."""
    if verdict.p is None or verdict.adjusted_p is None or verdict.p_equal is None:
        raise ValueError(f"{verdict.variant} − {verdict.against} was not tested")
    expected, within = verdict.expected, f"within ±{margin:g}"
    if verdict.outcome is Outcome.SHOWN:
        said = f"equal {within}" if expected == "equal" else f"{expected}, as expected"
        return f"{said} ({p_text(verdict.adjusted_p)})"
    if verdict.outcome is Outcome.OPPOSITE:
        decisive = verdict.p if expected == "equal" else verdict.adjusted_p
        return f"{_OTHER.get(expected, 'different')} where {expected} was expected ({p_text(decisive)})"
    if verdict.outcome is Outcome.EQUAL:
        return f"{within} ({p_text(verdict.p_equal)})"
    different, equal = p_text(verdict.p), p_text(verdict.p_equal)
    if expected == "equal":
        equal = f"{p_text(verdict.adjusted_p)} after Holm"
    else:
        different = f"{p_text(verdict.adjusted_p)} after Holm"
    return f"{different}; equality {within}: {equal}; {_needs(verdict, margin)}"


def _needs(verdict: Verdict, margin: float) -> str:
    needed = verdict.starts_needed or 0
    if needed <= verdict.starts:
        return f"{needed} starts are enough to find {margin:g} with {POWER:.0%}"
    if needed >= MANY:
        return f"{margin:g} needs {MANY} starts or more"
    more = needed - verdict.starts
    minutes = "" if verdict.minutes_needed is None else f" ({verdict.minutes_needed:.0f} minutes)"
    return f"{margin:g} needs {more} more start{'s' * (more > 1)}{minutes}"
