"""Verdicts on the declared comparisons of a grid, after its positive control and its manipulation checks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from statistics import fmean

from grpo_verl_ext.ablation.declaration.comparisons import (
    Comparison,
    Control,
    Declaration,
    ManipulationCheck,
    Primary,
)
from grpo_verl_ext.ablation.declaration.grid import AblationError, GridSettings
from grpo_verl_ext.ablation.running.results import CheckResult, Results, read_any
from grpo_verl_ext.ablation.statistics.measures import values_of
from grpo_verl_ext.ablation.statistics.pairs import MANY, POWER, Pairs, pairs_of, seeds_by_rule


class VerdictOutcome(str, Enum):
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
    measure: str
    """final, area, mean or second_half."""
    expected: str
    """higher, lower, different or equal."""
    outcome: VerdictOutcome
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


def outcome_of(
    expected: str,
    difference: float,
    *,
    p: float,
    p_equal: float,
    adjusted_p: float,
    alpha: float,
    comparisons: int,
) -> VerdictOutcome:
    """Decide one comparison.

    What is expected is shown at ``adjusted_p`` ≤ alpha, and its opposite direction likewise, the test being
    two-sided. What was not expected (equivalence, or a difference where equal was expected) is not in
    Holm's family: it takes p ≤ alpha / comparisons, so that nothing is easier to claim than what was
    declared. NaN decides nothing.
    """
    found, single = adjusted_p <= alpha, alpha / comparisons
    if expected == "equal":
        if found:
            return VerdictOutcome.SHOWN
        return VerdictOutcome.OPPOSITE if p <= single else VerdictOutcome.UNDECIDED
    if found:
        as_expected = expected == "different" or (difference > 0) == (expected == "higher")
        return VerdictOutcome.SHOWN if as_expected else VerdictOutcome.OPPOSITE
    return VerdictOutcome.EQUAL if p_equal <= single else VerdictOutcome.UNDECIDED


def control_of(results: Results) -> CheckResult | None:
    """The control of another grid, where one is declared: as it is kept, else as it is read now."""
    control = results.declared.control
    if results.control is not None or control is None or control.grid is None:
        return results.control
    return _control_of_grid(control.grid, results.declared.primary)


def missing_control(settings: GridSettings) -> str | None:
    """Say that the control is that of another grid, which has not shown it; None if nothing is missing."""
    if settings.control is None or settings.control.grid is None:
        return None
    control = _control_of_grid(settings.control.grid, settings.primary)
    if control.passed:
        return None
    fix = "grpo-verl-ext ablate run <file of that grid>"
    return f"{control.sentence}. Without it every verdict is blind. Type: {fix}"


def _control_of_grid(grid: str, compared: Primary | None) -> CheckResult:
    """The own control of another grid; missed where that has none, another primary, or cannot be read."""
    why = "that grid declares no control of its own"
    try:
        other, _ = read_any(Path(grid))
    except AblationError as error:
        why = str(error)
    else:
        control, primary = other.settings.control, other.settings.primary
        if primary != compared and primary is not None and compared is not None:
            why = f"it is about the {_number(primary)}, and nothing is known of the {_number(compared)}"
        elif control is not None and control.variant is not None and primary is not None:
            found = _own_control(other, control, primary)
            return replace(found, name=f"{found.name} (of {grid})", sentence=f"{found.sentence} (of {grid})")
    name = f"positive control of {grid}"
    return CheckResult(name, grid, None, passed=False, is_control=True, sentence=f"{name}: missed; {why}")


def _own_control(results: Results, control: Control, primary: Primary) -> CheckResult:
    """Whether the control's difference is significant, at alpha, in its expected direction."""
    declared = results.declared
    comparison = control.comparison(declared.baseline)
    expected = comparison.expected
    pairs = pairs_of(results, comparison, primary, declared.margin)
    tests = {"p": pairs.p, "p_equal": math.nan, "adjusted_p": pairs.p}
    outcome = outcome_of(expected, pairs.difference or 0.0, **tests, alpha=declared.alpha, comparisons=1)
    passed = outcome is VerdictOutcome.SHOWN
    said = "shown" if passed else f"missed; {expected} was expected"
    sentence = f"{_measured(comparison, primary, pairs)}: {said} ({pairs.why or _p_text(pairs.p)})"
    return CheckResult(
        name=f"positive control: {_comparison_name(comparison, primary)}, {expected}",
        variant=comparison.variant,
        value=pairs.difference,
        passed=passed,
        is_control=True,
        sentence=f"positive control {sentence}",
    )


def check_results(results: Results) -> list[CheckResult]:
    """The control and each check of each variant, in the order of their declaration."""
    declared, found = results.declared, []
    if results.control is not None:
        found.append(results.control)
    elif declared.control is not None and declared.primary is not None:
        found.append(_own_control(results, declared.control, declared.primary))
    for check in declared.checks:
        found += [_checked(results, check, variant) for variant in check.variants or declared.variants]
    return found


def _checked(results: Results, check: ManipulationCheck, variant: str) -> CheckResult:
    values = values_of(results, check.metric, check.measure)[variant]
    own = [values[seed] for seed in seeds_by_rule(results) if seed in values]
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


def judge(
    declared: Declaration,
    pairs: Sequence[Pairs],
    checks: Sequence[CheckResult],
    costs: Mapping[str, Mapping[str, float]],
) -> list[Verdict]:
    """The verdicts in the order of their declaration; empty without one.

    A missed control makes every verdict blind; a missed check makes each comparison of its variant not
    exercised.

    Args:
        pairs: those of each declared comparison, from `declared_pairs`.
        checks: from `check_results`.
        costs: what a run of each variant took, from `costs_of`.
    """
    primary, margin = declared.primary, declared.margin
    if primary is None or margin is None:
        return []
    verdicts = []
    for comparison, own in zip(declared.comparisons, pairs, strict=True):
        tested = _tested(declared, comparison, own, costs)
        outcome, why = _gate(comparison, checks) or (tested.outcome, own.why)
        verdict = replace(tested, outcome=outcome)
        head = f"{_measured(comparison, primary, own)}: {outcome.value}"
        verdicts.append(replace(verdict, sentence=f"{head}; {why or _reason(verdict, margin)}"))
    return verdicts


def _tested(
    declared: Declaration, comparison: Comparison, pairs: Pairs, costs: Mapping[str, Mapping[str, float]]
) -> Verdict:
    """The verdict of the tests, without a sentence."""
    primary, _ = declared.subject
    tested = pairs.why is None
    missing = (pairs.needed or 0) - len(pairs.by_seed)
    seconds = [costs[name]["seconds"] if name in costs else 0.0 for name in comparison.variants]
    known = missing > 0 and pairs.needed != MANY and all(seconds)
    return Verdict(
        variant=comparison.variant,
        against=comparison.against,
        measure=comparison.number_of(primary).measure,
        expected=comparison.expected,
        outcome=outcome_of(
            comparison.expected,
            pairs.difference or 0.0,
            p=pairs.p,
            p_equal=pairs.p_equal,
            adjusted_p=pairs.adjusted_p,
            alpha=declared.alpha,
            comparisons=len(declared.comparisons),
        ),
        starts=len(pairs.by_seed),
        difference=pairs.difference,
        low=pairs.low,
        high=pairs.high,
        p=pairs.p if tested else None,
        adjusted_p=pairs.adjusted_p if tested else None,
        p_equal=pairs.p_equal if tested else None,
        by_seed=pairs.by_seed,
        starts_needed=pairs.needed,
        minutes_needed=missing * math.fsum(seconds) / 60 if known else None,
        sentence="",
    )


def _gate(comparison: Comparison, checks: Sequence[CheckResult]) -> tuple[VerdictOutcome, str] | None:
    """The outcome that a missed control or check leaves, and why; None: the tests decide."""
    missed = [each for each in checks if not each.passed]
    if any(each.is_control for each in missed):
        return VerdictOutcome.BLIND, "the positive control was missed, so that nothing is claimed"
    own = [
        f"{each.name}, was missed by {each.variant}" for each in missed if each.variant in comparison.variants
    ]
    return (VerdictOutcome.NOT_EXERCISED, "; ".join(own)) if own else None


_OTHER = {"higher": "lower", "lower": "higher"}


def _reason(verdict: Verdict, margin: float) -> str:
    """The rest of the sentence of a verdict that the tests decided."""
    if verdict.p is None or verdict.adjusted_p is None or verdict.p_equal is None:
        raise ValueError(f"{verdict.variant} − {verdict.against} was not tested")
    expected, within = verdict.expected, f"within ±{margin:g}"
    if verdict.outcome is VerdictOutcome.SHOWN:
        said = f"equal {within}" if expected == "equal" else f"{expected}, as expected"
        return f"{said} ({_p_text(verdict.adjusted_p)})"
    if verdict.outcome is VerdictOutcome.OPPOSITE:
        decisive = verdict.p if expected == "equal" else verdict.adjusted_p
        return f"{_OTHER.get(expected, 'different')} where {expected} was expected ({_p_text(decisive)})"
    if verdict.outcome is VerdictOutcome.EQUAL:
        return f"{within} ({_p_text(verdict.p_equal)})"
    different, equal = _p_text(verdict.p), _p_text(verdict.p_equal)
    if expected == "equal":
        equal = f"{_p_text(verdict.adjusted_p)} after Holm"
    else:
        different = f"{_p_text(verdict.adjusted_p)} after Holm"
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


def _measured(comparison: Comparison, primary: Primary, pairs: Pairs) -> str:
    """``gvpo − grpo, area of acc, 12 starts: +0.021 (−0.008 … 0.050)``, as far as it is known."""
    text = f"{_comparison_name(comparison, primary)}, {starts_as_text(len(pairs.by_seed))}"
    if pairs.difference is None:
        return text
    text += f": {figures(pairs.difference, '+')}"
    if pairs.low is None or pairs.high is None:
        return text
    return f"{text} ({figures(pairs.low)} … {figures(pairs.high)})"


def _comparison_name(comparison: Comparison, primary: Primary) -> str:
    """``gvpo − grpo, area of acc``."""
    return f"{comparison.variant} − {comparison.against}, {_number(comparison.number_of(primary))}"


def _number(primary: Primary) -> str:
    """``area of acc``."""
    return f"{primary.measure.replace('_', ' ')} of {primary.metric}"


def starts_as_text(count: int) -> str:
    """``1 start``, ``12 starts``."""
    return f"{count} start" + ("" if count == 1 else "s")


def figures(value: float, sign: str = "") -> str:
    """Three decimals, or two figures where these would be zeros or one figure; with a true minus sign."""
    decimals = value == 0 or abs(value) >= 0.01
    text = f"{value:{sign}.3f}" if decimals else f"{value:{sign}.2g}"
    return text.replace("-", "−")


def _p_text(p: float) -> str:
    """``p = 0.034``, in two figures below 0.01."""
    if p < 0.0001:
        return "p < 0.0001"
    return f"p = {p:.2g}" if p < 0.01 else f"p = {p:.3f}"
