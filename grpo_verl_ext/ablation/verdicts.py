"""Verdicts on the declared comparisons of a grid, after its positive control and its manipulation checks."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from grpo_verl_ext.ablation.declaration import FEWEST, Comparison, GridSettings, Measure, Primary
from grpo_verl_ext.ablation.grid import AblationError
from grpo_verl_ext.ablation.measures import (
    MANY,
    POWER,
    Paired,
    holm,
    p_of_equality,
    paired,
    seeds_by_rule,
    starts_needed,
    values_of,
)
from grpo_verl_ext.ablation.table import CheckResult, Results, read_results


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


@dataclass(frozen=True, kw_only=True)
class Verdict(Paired):
    """One declared comparison over the common starts of its variants, with an interval of 1 − alpha."""

    variant: str
    against: str
    measure: Measure
    expected: str
    """higher, lower, different or equal."""
    outcome: VerdictOutcome = VerdictOutcome.UNDECIDED
    adjusted_p: float | None = None
    """After Holm over all comparisons; of ``p_equal`` where ``expected`` is equal."""
    p_equal: float | None = None
    """Equivalence within ±margin."""
    starts_needed: int | None = None
    """Starts with which a difference of ``margin`` is found with 80 %; None where the spread is unknown."""
    sentence: str = ""
    """All of it in words."""


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
    if adjusted_p <= alpha:
        as_expected = expected in ("equal", "different") or (difference > 0) == (expected == "higher")
        return VerdictOutcome.SHOWN if as_expected else VerdictOutcome.OPPOSITE
    if (p if expected == "equal" else p_equal) <= alpha / comparisons:
        return VerdictOutcome.OPPOSITE if expected == "equal" else VerdictOutcome.EQUAL
    return VerdictOutcome.UNDECIDED


def _tested(results: Results, comparison: Comparison, primary: Primary) -> tuple[Verdict, str]:
    """Test a comparison over the declared starts that its variants have finished; also return why not."""
    measure, grid, weights = comparison.measure or primary.measure, results.settings, comparison.weights
    every = values_of(results, primary.metric, measure)
    starts = {
        seed: {name: every[name][seed] for name in weights}
        for seed in seeds_by_rule(results)
        if all(seed in every[name] for name in weights)
    }
    by_seed = {
        seed: sum(weights[name] * value for name, value in values.items()) - (comparison.number or 0.0)
        for seed, values in starts.items()
    }
    differences = np.array([*by_seed.values()])
    largest = max((abs(value) for values in starts.values() for value in values.values()), default=0.0)
    numbers: dict[str, Any] = {"variant": comparison.variant, "against": comparison.against}
    numbers |= {"measure": measure, "expected": comparison.expected, "by_seed": by_seed}
    why = ""
    if unknown := [str(seed) for seed, value in by_seed.items() if not math.isfinite(value)]:
        why = f"a value is NaN with seed {', '.join(unknown)}"
    elif len(starts) < FEWEST:
        numbers["difference"] = fmean(differences) if starts else None
        everyone = "both" if len(weights) == 2 else "all"
        why = f"fewer than {FEWEST} starts are finished by {everyone}"
    else:
        numbers |= vars(paired(by_seed, largest, 1 - grid.alpha))
        if numbers["p"] is None:
            why = "the difference is the same with every seed"
        elif grid.margin is not None:
            numbers["p_equal"] = float(p_of_equality(differences, grid.margin))
            numbers["starts_needed"] = starts_needed(grid.margin, float(differences.std(ddof=1)), grid.level)
    verdict = Verdict(**numbers)
    name = f"{verdict.variant} − {verdict.against}, {Primary(primary.metric, measure)}"
    return replace(verdict, sentence=in_words(name, verdict)), why


def judge(results: Results) -> tuple[list[CheckResult], list[Verdict]]:
    """The control, the checks of each variant and the verdicts, in the order of their declaration."""
    grid, primary, margin = results.settings, results.settings.primary, results.settings.margin
    checks = [results.control] if results.control is not None else []
    if not checks and grid.own_control is not None and primary is not None:
        checks.append(_own_control(results, grid.own_control, primary))
    for check in grid.checks:
        every = values_of(results, check.metric, check.measure)
        for variant in check.variants or grid.overrides:
            known = [every[variant][seed] for seed in seeds_by_rule(results) if seed in every[variant]]
            mean = fmean(known) if known else math.nan
            value, passed = None if math.isnan(mean) else mean, mean >= check.at_least
            measured = "not measured" if value is None else figures(value)
            sentence = f"{variant}: {check}: {measured}, {'passed' if passed else 'missed'}"
            checks.append(CheckResult(str(check), variant, value, passed, False, sentence))
    if primary is None or margin is None or not grid.expect:
        return checks, []
    tested = [_tested(results, each, primary) for each in grid.comparisons]
    p, p_equal = np.array([(each.p, each.p_equal) for each, _ in tested], dtype=float).T  # None becomes NaN
    adjusted = holm(np.where([each.expected == "equal" for each, _ in tested], p_equal, p))
    found, missed = [], [each for each in checks if not each.passed]
    for comparison, (each, why), *values in zip(grid.comparisons, tested, p, p_equal, adjusted, strict=True):
        tests: dict[str, Any] = dict(zip(("p", "p_equal", "adjusted_p"), map(float, values), strict=True))
        tests |= {"alpha": grid.alpha, "comparisons": len(tested)}
        outcome = outcome_of(each.expected, each.difference or 0.0, **tests)
        after_holm = None if math.isnan(tests["adjusted_p"]) else tests["adjusted_p"]
        verdict = replace(each, adjusted_p=after_holm, outcome=outcome)
        reason = why or _reason(verdict, margin)
        own = [check for check in missed if check.variant in comparison.weights]
        if any(check.is_control for check in missed):
            outcome = VerdictOutcome.BLIND
            reason = "the positive control was missed, so that nothing is claimed"
        elif own:
            outcome = VerdictOutcome.NOT_EXERCISED
            reason = "; ".join(f"{check.name}, was missed by {check.variant}" for check in own)
        said = f"{verdict.sentence}: {outcome.value}; {reason}"
        found.append(replace(verdict, outcome=outcome, sentence=said))
    return checks, found


def control_of(settings: GridSettings) -> CheckResult | None:
    """The control of another grid, as it is read now; None: none is declared.

    It is missed where that grid has none of its own, or another primary, or cannot be read.
    """
    control, compared = settings.control, settings.primary
    if control is None or control.grid is None:
        return None
    try:
        other = read_results(Path(control.grid))
        primary, own = other.settings.primary, other.settings.own_control
        if primary is None or own is None:
            raise AblationError("that grid declares no control of its own")
        if compared not in (None, primary):
            raise AblationError(f"it is about the {primary}, and nothing is known of the {compared}")
        found, of = _own_control(other, own, primary), f" (of {control.grid})"
        return replace(found, name=found.name + of, sentence=found.sentence + of)
    except AblationError as error:
        name = f"positive control of {control.grid}"
        return CheckResult(name, control.grid, None, False, True, f"{name}: missed; {error}")


def _own_control(results: Results, comparison: Comparison, primary: Primary) -> CheckResult:
    """Whether the control's difference is significant, at alpha, in its expected direction."""
    (tested, why), expected = _tested(results, comparison, primary), comparison.expected
    p, difference = math.nan if tested.p is None else tested.p, tested.difference
    # at alpha, outside of Holm's family
    tests = {"adjusted_p": p, "alpha": results.settings.alpha}
    outcome = outcome_of(expected, difference or 0.0, p=p, p_equal=math.nan, comparisons=1, **tests)
    passed = outcome is VerdictOutcome.SHOWN
    said = "shown" if passed else f"missed; {expected} was expected"
    said = f"positive control {tested.sentence}: {said} ({why or _p_text(p)})"
    name = f"positive control: {tested.variant} − {tested.against}, {primary}, {expected}"
    return CheckResult(name, comparison.variant, difference, passed, True, said)


def _reason(verdict: Verdict, margin: float) -> str:
    """The rest of the sentence of a verdict that the tests decided."""
    expected, within = verdict.expected, f"within ±{margin:g}"
    numbers = (verdict.p, verdict.p_equal, verdict.adjusted_p)
    p, p_equal, adjusted_p = (_p_text(math.nan if each is None else each) for each in numbers)
    if verdict.outcome is VerdictOutcome.SHOWN:
        said = f"equal {within}" if expected == "equal" else f"{expected}, as expected"
        return f"{said} ({adjusted_p})"
    if verdict.outcome is VerdictOutcome.OPPOSITE:
        other = {"higher": "lower", "lower": "higher"}.get(expected, "different")
        return f"{other} where {expected} was expected ({p if expected == 'equal' else adjusted_p})"
    if verdict.outcome is VerdictOutcome.EQUAL:
        return f"{within} ({p_equal})"
    adjusted_p += " after Holm"
    different, equal = (p, adjusted_p) if expected == "equal" else (adjusted_p, p_equal)
    needed = verdict.starts_needed or 0
    more = needed - len(verdict.by_seed)
    if more <= 0:
        needs = f"{needed} starts are enough to find {margin:g} with {POWER:.0%}"
    elif needed >= MANY:
        needs = f"{margin:g} needs {MANY} starts or more"
    else:
        needs = f"{margin:g} needs {more} more start{'s' * (more > 1)}"
    return f"{different}; equality {within}: {equal}; {needs}"


def in_words(name: str, numbers: Paired) -> str:
    """``gvpo − grpo, area of acc, 12 starts: +0.021 (−0.008 … 0.050)``, as far as it is known."""
    starts = len(numbers.by_seed)
    text = f"{name}, {starts} start{'s' * (starts != 1)}"
    if numbers.difference is None:
        return text
    ends = "no interval"
    if numbers.low is not None and numbers.high is not None:
        ends = f"{figures(numbers.low)} … {figures(numbers.high)}"
    return f"{text}: {figures(numbers.difference, '+')} ({ends})"


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
