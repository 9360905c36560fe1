"""Verdicts on the declared comparisons of a grid, after its positive control and its manipulation checks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from statistics import fmean

import numpy as np

from grpo_verl_ext.ablation.declaration import FEWEST, Comparison, ManipulationCheck, Primary
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
    number, grid = comparison.number_of(primary), results.settings
    every = values_of(results, number.metric, number.measure)
    values = {name: every[name] for name in comparison.variants}
    common = [seed for seed in seeds_by_rule(results) if all(seed in each for each in values.values())]
    by_seed = {
        seed: comparison.difference({name: each[seed] for name, each in values.items()}) for seed in common
    }
    sides = (comparison.variant, comparison.against, number.measure, comparison.expected)
    verdict = Verdict(*sides, VerdictOutcome.UNDECIDED, len(common), by_seed)
    if unknown := [str(seed) for seed in common if not math.isfinite(by_seed[seed])]:
        why = f"a value is NaN with seed {', '.join(unknown)}"
        return replace(verdict, sentence=why)
    verdict = replace(verdict, difference=fmean(by_seed.values()) if by_seed else None)
    if len(common) < FEWEST:
        everyone = "both" if len(values) == 2 else "all"
        return replace(verdict, sentence=f"fewer than {FEWEST} starts are finished by {everyone}")
    differences = np.array([*by_seed.values()])
    if differences.std() <= NO_SPREAD * max(abs(each[seed]) for seed in common for each in values.values()):
        return replace(verdict, sentence="the difference is the same with every seed")
    tests = paired_tests(differences, math.nan if grid.margin is None else grid.margin)
    _, sd, low, high = map(float, interval(differences, 1 - grid.alpha))
    needed = None if grid.margin is None else starts_needed(grid.margin, sd, grid.level)
    p, p_equal = float(tests.p), float(tests.p_equal)
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
    grid = results.settings
    if grid.primary is None or grid.margin is None:
        return []
    found = [_tested(results, each, grid.primary) for each in grid.comparisons]
    p_values = [math.nan if v.p is None else declared_p(v.expected, v.p, v.p_equal or 0.0) for v in found]
    adjusted = holm(np.array(p_values)) if found else ()
    return [
        _decided(grid, each, replace(tested, minutes_needed=_minutes(each, tested, costs)), float(p), checks)
        for each, tested, p in zip(grid.comparisons, found, adjusted, strict=True)
    ]


def _decided(
    grid: GridSettings, comparison: Comparison, verdict: Verdict, p: float, checks: Sequence[CheckResult]
) -> Verdict:
    """Add outcome and sentence, given the p-value after Holm."""
    if grid.primary is None or grid.margin is None:
        raise ValueError("the grid declares no comparison")
    why = verdict.sentence
    if verdict.p is not None and verdict.p_equal is not None:
        outcome = outcome_of(
            verdict.expected,
            verdict.difference or 0.0,
            p=verdict.p,
            p_equal=verdict.p_equal,
            adjusted_p=p,
            alpha=grid.alpha,
            comparisons=len(grid.expect),
        )
        verdict = replace(verdict, outcome=outcome, adjusted_p=p)
        why = _reason(verdict, grid.margin)
    missed = [each for each in checks if not each.passed]
    own = [each for each in missed if each.variant in comparison.variants]
    if any(each.is_control for each in missed):
        verdict = replace(verdict, outcome=VerdictOutcome.BLIND)
        why = "the positive control was missed, so that nothing is claimed"
    elif own:
        verdict = replace(verdict, outcome=VerdictOutcome.NOT_EXERCISED)
        why = "; ".join(f"{each.name}, was missed by {each.variant}" for each in own)
    sentence = f"{_measured(verdict, grid.primary)}: {verdict.outcome.value}; {why}"
    return replace(verdict, sentence=sentence)


def _minutes(
    comparison: Comparison, verdict: Verdict, costs: Mapping[str, Mapping[str, float]]
) -> float | None:
    missing = (verdict.starts_needed or 0) - verdict.starts
    seconds = [costs[name]["seconds"] if name in costs else 0.0 for name in comparison.variants]
    known = missing > 0 and verdict.starts_needed != MANY and all(seconds)
    return missing * math.fsum(seconds) / 60 if known else None


def check_results(results: Results) -> list[CheckResult]:
    """The control and each check of each variant, in the order of their declaration."""
    grid, found = results.settings, []
    if results.control is not None:
        found.append(results.control)
    elif grid.own_control is not None and grid.primary is not None:
        found.append(_own_control(results, grid.own_control, grid.primary))
    for check in grid.checks:
        found += [_checked(results, check, variant) for variant in check.variants or grid.variants]
    return found


def _checked(results: Results, check: ManipulationCheck, variant: str) -> CheckResult:
    values = values_of(results, check.metric, check.measure)[variant]
    own = [values[seed] for seed in seeds_by_rule(results) if seed in values]
    mean = fmean(own) if own else math.nan
    unknown, passed = math.isnan(mean), mean >= check.at_least
    said = f"{'not measured' if unknown else figures(mean)}, {'passed' if passed else 'missed'}"
    value = None if unknown else mean
    return CheckResult(
        str(check), variant, value, passed, is_control=False, sentence=f"{variant}: {check}: {said}"
    )


def control_of(results: Results) -> CheckResult | None:
    """The control of another grid, where one is declared: as it is kept, else as it is read now."""
    control = results.settings.control
    if results.control is not None or control is None or control.grid is None:
        return results.control
    return _control_of_grid(control.grid, results.settings.primary)


def missing_control(settings: GridSettings) -> str | None:
    """Say that the control is that of another grid, which has not shown it; None if nothing is missing."""
    if settings.control is None or settings.control.grid is None:
        return None
    control = _control_of_grid(settings.control.grid, settings.primary)
    fix = "grpo-verl-ext ablate run <file of that grid>"
    return None if control.passed else f"{control.sentence}. Without it every verdict is blind. Type: {fix}"


def _control_of_grid(grid: str, compared: Primary | None) -> CheckResult:
    """The own control of another grid; missed where that has none, another primary, or cannot be read."""
    why = "that grid declares no control of its own"
    try:
        other, _ = read_any(Path(grid))
    except AblationError as error:
        why = str(error)
    else:
        primary, control = other.settings.primary, other.settings.own_control
        if primary != compared and primary is not None and compared is not None:
            why = f"it is about the {primary}, and nothing is known of the {compared}"
        elif control is not None and primary is not None:
            found = _own_control(other, control, primary)
            return replace(found, name=f"{found.name} (of {grid})", sentence=f"{found.sentence} (of {grid})")
    name = f"positive control of {grid}"
    return CheckResult(name, grid, None, passed=False, is_control=True, sentence=f"{name}: missed; {why}")


def _own_control(results: Results, comparison: Comparison, primary: Primary) -> CheckResult:
    """Whether the control's difference is significant, at alpha, in its expected direction."""
    tested, expected = _tested(results, comparison, primary), comparison.expected
    p = math.nan if tested.p is None else tested.p
    tests = {"p": p, "p_equal": math.nan, "adjusted_p": p}
    alpha, difference = results.settings.alpha, tested.difference or 0.0
    outcome = outcome_of(expected, difference, **tests, alpha=alpha, comparisons=1)
    passed = outcome is VerdictOutcome.SHOWN
    said = "shown" if passed else f"missed; {expected} was expected"
    return CheckResult(
        name=f"positive control: {tested.variant} − {tested.against}, {primary}, {expected}",
        variant=comparison.variant,
        value=tested.difference,
        passed=passed,
        is_control=True,
        sentence=f"positive control {_measured(tested, primary)}: {said} ({tested.sentence or _p_text(p)})",
    )


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
    different, equal, after_holm = _p_text(verdict.p), _p_text(verdict.p_equal), _p_text(verdict.adjusted_p)
    if expected == "equal":
        equal = f"{after_holm} after Holm"
    else:
        different = f"{after_holm} after Holm"
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


def _measured(verdict: Verdict, primary: Primary) -> str:
    """``gvpo − grpo, area of acc, 12 starts: +0.021 (−0.008 … 0.050)``, as far as it is known."""
    number = Primary(primary.metric, verdict.measure)  # type: ignore[arg-type]
    starts = f"{verdict.starts} start{'s' * (verdict.starts != 1)}"
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
