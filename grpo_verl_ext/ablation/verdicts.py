"""Verdicts on the declared comparisons of a grid, after its positive control and its manipulation checks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from statistics import fmean

import numpy as np

from grpo_verl_ext.ablation.declaration import FEWEST, Comparison, Primary
from grpo_verl_ext.ablation.grid import AblationError, GridSettings
from grpo_verl_ext.ablation.measures import NO_SPREAD, holm, interval, paired_tests, values_of
from grpo_verl_ext.ablation.power import MANY, POWER, seeds_by_rule, starts_needed
from grpo_verl_ext.ablation.table import CheckResult, Results, read_any


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
    """One declared comparison, paired by seed over the common starts of its variants; None: not tested."""

    variant: str
    against: str
    measure: str
    """final, area, mean or second_half."""
    expected: str
    """higher, lower, different or equal."""
    outcome: VerdictOutcome
    starts: int
    """Number of common starts."""
    by_seed: dict[int, float]
    """Seed → difference."""
    difference: float | None = None
    """Mean of ``by_seed``; None without a start, and where a value is NaN."""
    low: float | None = None
    high: float | None = None
    """Interval of level 1 − alpha: Student's t on the differences."""
    p: float | None = None
    """Two-sided paired t-test."""
    adjusted_p: float | None = None
    """After Holm over all comparisons; of ``p_equal`` where ``expected`` is equal."""
    p_equal: float | None = None
    """Equivalence within ±margin: the larger p of two one-sided paired t-tests."""
    starts_needed: int | None = None
    """Starts with which a difference of ``margin`` is found with 80 %; None where the spread is unknown."""
    minutes_needed: float | None = None
    """Minutes of steps that the missing starts of its variants would take; None if none is missing."""
    sentence: str = ""
    """All of it in words; until `judge` has decided, why nothing was tested, or ""."""


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


def _tested(results: Results, comparison: Comparison, primary: Primary) -> Verdict:
    """Pair and test a comparison over the declared starts that its variants have finished; decide nothing."""
    measure, grid = comparison.measure or primary.measure, results.settings
    every = values_of(results, primary.metric, measure)
    values = {name: every[name] for name in comparison.variants}
    common = [seed for seed in seeds_by_rule(results) if all(seed in each for each in values.values())]
    by_seed = {
        seed: comparison.difference({name: each[seed] for name, each in values.items()}) for seed in common
    }
    sides = (comparison.variant, comparison.against, measure, comparison.expected)
    verdict = Verdict(*sides, VerdictOutcome.UNDECIDED, len(common), by_seed)
    if unknown := [str(seed) for seed in common if not math.isfinite(by_seed[seed])]:
        return replace(verdict, sentence=f"a value is NaN with seed {', '.join(unknown)}")
    verdict = replace(verdict, difference=fmean(by_seed.values()) if by_seed else None)
    if len(common) < FEWEST:
        everyone = "both" if len(values) == 2 else "all"
        return replace(verdict, sentence=f"fewer than {FEWEST} starts are finished by {everyone}")
    differences = np.array([*by_seed.values()])
    if differences.std() <= NO_SPREAD * max(abs(each[seed]) for seed in common for each in values.values()):
        return replace(verdict, sentence="the difference is the same with every seed")
    p, p_equal = map(float, paired_tests(differences, math.nan if grid.margin is None else grid.margin))
    _, sd, low, high = map(float, interval(differences, 1 - grid.alpha))
    needed = None if grid.margin is None else starts_needed(grid.margin, sd, grid.level)
    return replace(verdict, low=low, high=high, p=p, p_equal=p_equal, starts_needed=needed)


def judge(
    results: Results, checks: Sequence[CheckResult], costs: Mapping[str, Mapping[str, float]]
) -> list[Verdict]:
    """The verdicts in the order of their declaration; empty without one.

    A missed control makes every verdict blind; a missed check makes each comparison of its variant not
    exercised.

    Args:
        checks: from `check_results`.
        costs: what a run of each variant took, from `costs_of`.
    """
    grid, margin, primary = results.settings, results.settings.margin, results.settings.primary
    if primary is None or margin is None:
        return []
    tested = [_tested(results, each, primary) for each in grid.comparisons]
    declared = [each.p_equal if each.expected == "equal" else each.p for each in tested]
    adjusted = holm(np.array(declared, dtype=float)) if tested else ()
    found, missed = [], [each for each in checks if not each.passed]
    for comparison, each, p in zip(grid.comparisons, tested, adjusted, strict=True):
        verdict = _decided(replace(each, minutes_needed=_minutes(each, comparison, costs)), p, grid)
        why = each.sentence or _reason(verdict, margin)
        own = [check for check in missed if check.variant in comparison.variants]
        if any(check.is_control for check in missed):
            verdict = replace(verdict, outcome=VerdictOutcome.BLIND)
            why = "the positive control was missed, so that nothing is claimed"
        elif own:
            verdict = replace(verdict, outcome=VerdictOutcome.NOT_EXERCISED)
            why = "; ".join(f"{check.name}, was missed by {check.variant}" for check in own)
        said = f"{_measured(verdict, primary.metric)}: {verdict.outcome.value}; {why}"
        found.append(replace(verdict, sentence=said))
    return found


def _minutes(
    verdict: Verdict, comparison: Comparison, costs: Mapping[str, Mapping[str, float]]
) -> float | None:
    missing = (verdict.starts_needed or 0) - verdict.starts
    seconds = [costs.get(name, {"seconds": 0.0})["seconds"] for name in comparison.variants]
    known = missing > 0 and verdict.starts_needed != MANY and all(seconds)
    return missing * math.fsum(seconds) / 60 if known else None


def _decided(verdict: Verdict, adjusted_p: float, grid: GridSettings) -> Verdict:
    """Add the outcome of the tests, given the p-value after Holm."""
    if verdict.p is None or verdict.p_equal is None:
        return verdict
    outcome = outcome_of(
        verdict.expected,
        verdict.difference or 0.0,
        p=verdict.p,
        p_equal=verdict.p_equal,
        adjusted_p=adjusted_p,
        alpha=grid.alpha,
        comparisons=len(grid.expect),
    )
    return replace(verdict, outcome=outcome, adjusted_p=float(adjusted_p))


def check_results(results: Results) -> list[CheckResult]:
    """The control and each check of each variant, in the order of their declaration."""
    grid, found = results.settings, []
    if results.control is not None:
        found.append(results.control)
    elif grid.own_control is not None and grid.primary is not None:
        found.append(_own_control(results, grid.own_control, grid.primary))
    for check in grid.checks:
        for variant in check.variants or grid.variants:
            values = values_of(results, check.metric, check.measure)[variant]
            own = [values[seed] for seed in seeds_by_rule(results) if seed in values]
            mean = fmean(own) if own else math.nan
            unknown, passed = math.isnan(mean), mean >= check.at_least
            said = f"{'not measured' if unknown else figures(mean)}, {'passed' if passed else 'missed'}"
            value, sentence = None if unknown else mean, f"{variant}: {check}: {said}"
            found.append(CheckResult(str(check), variant, value, passed, False, sentence))
    return found


def control_of(settings: GridSettings) -> CheckResult | None:
    """The control of another grid, as it is read now; None: none is declared.

    It is missed where that grid has none of its own, or another primary, or cannot be read.
    """
    control, compared = settings.control, settings.primary
    if control is None or control.grid is None:
        return None
    why = "that grid declares no control of its own"
    try:
        other, _ = read_any(Path(control.grid))
    except AblationError as error:
        why = str(error)
    else:
        primary, own = other.settings.primary, other.settings.own_control
        if primary != compared and primary is not None and compared is not None:
            why = f"it is about the {primary}, and nothing is known of the {compared}"
        elif own is not None and primary is not None:
            found, of = _own_control(other, own, primary), f" (of {control.grid})"
            return replace(found, name=found.name + of, sentence=found.sentence + of)
    name = f"positive control of {control.grid}"
    return CheckResult(name, control.grid, None, False, True, f"{name}: missed; {why}")


def _own_control(results: Results, comparison: Comparison, primary: Primary) -> CheckResult:
    """Whether the control's difference is significant, at alpha, in its expected direction."""
    tested, expected = _tested(results, comparison, primary), comparison.expected
    p = math.nan if tested.p is None else tested.p
    tests = {"p": p, "p_equal": math.nan, "adjusted_p": p}
    outcome = outcome_of(
        expected, tested.difference or 0.0, **tests, alpha=results.settings.alpha, comparisons=1
    )
    passed = outcome is VerdictOutcome.SHOWN
    said = "shown" if passed else f"missed; {expected} was expected"
    said = f"positive control {_measured(tested, primary.metric)}: {said} ({tested.sentence or _p_text(p)})"
    name = f"positive control: {tested.variant} − {tested.against}, {primary}, {expected}"
    return CheckResult(name, comparison.variant, tested.difference, passed, True, said)


_OTHER = {"higher": "lower", "lower": "higher"}


def _reason(verdict: Verdict, margin: float) -> str:
    """The rest of the sentence of a verdict that the tests decided."""
    expected, within = verdict.expected, f"within ±{margin:g}"
    p, p_equal, adjusted_p = verdict.p or 0.0, verdict.p_equal or 0.0, verdict.adjusted_p or 0.0
    if verdict.outcome is VerdictOutcome.SHOWN:
        said = f"equal {within}" if expected == "equal" else f"{expected}, as expected"
        return f"{said} ({_p_text(adjusted_p)})"
    if verdict.outcome is VerdictOutcome.OPPOSITE:
        decisive = p if expected == "equal" else adjusted_p
        return f"{_OTHER.get(expected, 'different')} where {expected} was expected ({_p_text(decisive)})"
    if verdict.outcome is VerdictOutcome.EQUAL:
        return f"{within} ({_p_text(p_equal)})"
    different, equal, after_holm = _p_text(p), _p_text(p_equal), f"{_p_text(adjusted_p)} after Holm"
    if expected == "equal":
        equal = after_holm
    else:
        different = after_holm
    needed = verdict.starts_needed or 0
    more = needed - verdict.starts
    if more <= 0:
        needs = f"{needed} starts are enough to find {margin:g} with {POWER:.0%}"
    elif needed >= MANY:
        needs = f"{margin:g} needs {MANY} starts or more"
    else:
        minutes = "" if verdict.minutes_needed is None else f" ({verdict.minutes_needed:.0f} minutes)"
        needs = f"{margin:g} needs {more} more start{'s' * (more > 1)}{minutes}"
    return f"{different}; equality {within}: {equal}; {needs}"


def _measured(verdict: Verdict, metric: str) -> str:
    """``gvpo − grpo, area of acc, 12 starts: +0.021 (−0.008 … 0.050)``, as far as it is known."""
    starts = f"{verdict.starts} start{'s' * (verdict.starts != 1)}"
    number = f"{verdict.measure.replace('_', ' ')} of {metric}"
    text = f"{verdict.variant} − {verdict.against}, {number}, {starts}"
    text += "" if verdict.difference is None else f": {figures(verdict.difference, '+')}"
    if verdict.low is None or verdict.high is None:
        return text
    return f"{text} ({figures(verdict.low)} … {figures(verdict.high)})"


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
