"""Verdicts on the declared comparisons of a grid, after its positive control and its manipulation checks."""

import math
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np

from grpo_verl_ext.ablation.declaration import FEWEST, Comparison, GridSettings, Primary
from grpo_verl_ext.ablation.grid import AblationError
from grpo_verl_ext.ablation.measures import MANY, POWER, Paired, holm
from grpo_verl_ext.ablation.results import CheckResult, Outcome, Results, Verdict, read_results


def outcome_of(tested: Verdict, alpha: float, comparisons: int) -> Outcome:
    """Decide one comparison.

    What is expected is shown at ``adjusted_p`` ≤ alpha, and its opposite direction likewise, the test being
    two-sided. What was not expected (equivalence, or a difference where equal was expected) is not in
    Holm's family: it takes p ≤ alpha / comparisons, so that nothing is easier to claim than what was
    declared. NaN and None, no test, decide nothing.
    """
    expected, adjusted = tested.expected, tested.adjusted_p
    if adjusted is not None and adjusted <= alpha:
        is_higher = tested.difference is not None and tested.difference > 0
        as_expected = expected in ("equal", "different") or is_higher == (expected == "higher")
        return "shown" if as_expected else "opposite"
    other = tested.p if expected == "equal" else tested.p_equal
    if other is not None and other <= alpha / comparisons:
        return "opposite" if expected == "equal" else "equal within the margin"
    return "undecided"


def judge(results: Results) -> tuple[list[CheckResult], list[Verdict]]:
    """The control, the checks of each variant and the verdicts, in the order of their declaration."""
    grid, checks = results.settings, [results.control] if results.control else []
    if grid.own_control is not None and not checks:
        checks.append(_control(results, grid.own_control))
    for check in grid.checks:
        every = results.values[check.metric, check.measure]
        name = f"{Primary(check.metric, check.measure)}, at least {check.at_least:g}"
        for variant in check.variants or grid.overrides:
            known = [every[variant][seed] for seed in results.seeds if seed in every[variant]]
            mean = fmean(known) if known else math.nan
            value, passed = None if math.isnan(mean) else mean, mean >= check.at_least
            measured = "not measured" if value is None else figures(value)
            sentence = f"{variant}: {name}: {measured}, {'passed' if passed else 'missed'}"
            checks.append(CheckResult(name, variant, value, passed, False, sentence))
    tests = [results.tested(each) for each in grid.comparisons]
    p = [each.p_equal if each.expected == "equal" else each.p for each in tests]
    adjusted = holm(np.array(p, dtype=float)).tolist()
    verdicts, missed = [], [each for each in checks if not each.passed]
    for alone, adjusted_p in zip(tests, adjusted, strict=True):
        tested = alone if alone.p is None else replace(alone, adjusted_p=adjusted_p)
        outcome = outcome_of(tested, grid.alpha, len(tests))
        own = [check for check in missed if check.variant in tested.weights]
        if any(check.is_control for check in missed):
            outcome = "blind"
            reason = "the positive control was missed, so that nothing is claimed"
        elif own:
            outcome = "not exercised"
            reason = "; ".join(f"{check.name}, was missed by {check.variant}" for check in own)
        else:
            reason = _untested(tested) or _needed(tested, grid.margin or 0.0)
        label, said = _in_a_sentence(tested, outcome, reason, grid)
        verdicts.append(replace(tested, outcome=outcome, label=label, sentence=said))
    return checks, verdicts


def control_of(settings: GridSettings) -> CheckResult | None:
    """The control of another grid, as it is read now, missed if it says nothing of this one; or None."""
    control, compared = settings.control, settings.primary
    if control is None or control.grid is None:
        return None
    try:
        other = read_results(Path(control.grid))
        own, about = other.settings.own_control, other.settings.shown
        if own is None:
            raise AblationError("that grid declares no control of its own")
        if compared not in (None, about):
            raise AblationError(f"it is about the {about}, and nothing is known of the {compared}")
        found, of = _control(other, own), f" (of {control.grid})"
        return replace(found, name=found.name + of, sentence=found.sentence + of)
    except AblationError as error:
        name = f"positive control of {control.grid}"
        return CheckResult(name, control.grid, None, False, True, f"{name}: missed; {error}")


def _control(results: Results, comparison: Comparison) -> CheckResult:
    """Whether the control's difference is significant, at alpha, in its expected direction."""
    tested = results.tested(comparison)
    alone = replace(tested, adjusted_p=tested.p, p_equal=None)  # outside of Holm's family
    outcome = outcome_of(alone, results.settings.alpha, 1)
    name = f"positive control: {tested.variant} is {tested.expected} than {tested.against} in the {tested.of}"
    passed = outcome == "shown"
    _, said = _in_a_sentence(alone, outcome, _untested(alone), results.settings)
    said = f"positive control{' missed' * (not passed)}: {said}"
    return CheckResult(name, tested.variant, tested.difference, passed, True, said)


def _untested(tested: Verdict) -> str:
    """Why there is no p; empty: there is one."""
    if unknown := [str(seed) for seed, value in tested.by_seed.items() if not math.isfinite(value)]:
        return f"a value is NaN with seed {', '.join(unknown)}"
    if len(tested.by_seed) < FEWEST:
        everyone = "both" if len(tested.weights) == 2 else "all"
        return f"fewer than {FEWEST} seeds are finished by {everyone}"
    return "the difference is the same with every seed" if tested.p is None else ""


def _needed(tested: Verdict, margin: float) -> str:
    """How many seeds find the margin."""
    needed, count = tested.starts_needed or 0, len(tested.by_seed)
    if needed <= count:
        return f"{needed} seeds are enough to find {margin:g} with {POWER:.0%}"
    more = f"{MANY} or more" if needed >= MANY else f"{needed - count} more"
    return f"finding a difference of {margin:g} takes {more} seeds"


_NOUNS = {"equal": "equality", "different": "a difference"}


def _in_a_sentence(tested: Verdict, outcome: Outcome, reason: str, grid: GridSettings) -> tuple[str, str]:
    """Return the kind of finding, and a sentence with its numbers, p after Holm, and what was expected."""
    a, b, expected, p = tested.variant, tested.against, tested.expected, tested.adjusted_p
    side = "higher" if (tested.difference or 0.0) > 0 else "lower"
    claims = {name: f"{a} is {name} than {b}" for name in ("higher", "lower")}
    claims |= {"different": f"{a} differs from {b}", "equal": f"{a} equals {b} within ±{grid.margin or 0:g}"}
    label: str = side
    end = ", as expected" if outcome == "shown" else f"; {reason}" * bool(reason)
    if outcome in ("opposite", "equal within the margin"):
        end = f", where {_NOUNS.get(expected, expected)} was expected"
        p = tested.p_equal if outcome != "opposite" else tested.p if expected == "equal" else p
    if outcome == "equal within the margin" or (outcome == "shown" and expected == "equal"):
        label, said = "equal within the margin", claims["equal"]
    elif outcome in ("shown", "opposite"):
        said = claims[side]
    else:
        start = "it is undecided" if outcome == "undecided" else "nothing is said of"
        label, said = outcome, f"{start} whether {claims[expected]}"
    count, interval = len(tested.by_seed), "no interval"
    if tested.low is not None and tested.high is not None:
        interval = f"{1 - grid.alpha:.0%} interval {figures(tested.low)} to {figures(tested.high)}"
    of_p = "" if p is None else "; p < 0.0001" if p < 0.0001 else f"; p = {p:.2g}"
    difference = "" if tested.difference is None else f"{figures(tested.difference, '+')} "
    seeds = f"{count} seed{'s' * (count != 1)}"
    return label, f"{said} in the {tested.of}: {difference}({interval}; {seeds}{of_p}){end}"


def in_words(name: str, numbers: Paired) -> str:
    """``gvpo − grpo, mean over steps of acc, 12 seeds: +0.021 (−0.008 … 0.050)``, as far as it is known."""
    text = f"{name}, {len(numbers.by_seed)} seed{'s' * (len(numbers.by_seed) != 1)}"
    if numbers.difference is None:
        return text
    ends = [figures(each) for each in (numbers.low, numbers.high) if each is not None]
    return f"{text}: {figures(numbers.difference, '+')} ({' … '.join(ends) or 'no interval'})"


def figures(value: float, sign: str = "") -> str:
    """Three decimals, or two figures where these would be zeros or one figure; with a true minus sign."""
    decimals = value == 0 or abs(value) >= 0.01
    text = f"{value:{sign}.3f}" if decimals else f"{value:{sign}.2g}"
    return text.replace("-", "−")
