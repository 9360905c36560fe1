"""The positive control and the manipulation checks of a grid, from its finished runs."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from grpo_verl_ext.ablation.declaration.comparisons import Check, Control, Primary
from grpo_verl_ext.ablation.declaration.grid import AblationError, GridSettings
from grpo_verl_ext.ablation.running.kept import read_any
from grpo_verl_ext.ablation.running.results import Results
from grpo_verl_ext.ablation.statistics.pairs import pairs_of
from grpo_verl_ext.ablation.statistics.sentences import comparison_name, control_sentence, figures
from grpo_verl_ext.ablation.statistics.verdicts import CheckResult, Outcome, outcome_of


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


def check_results(results: Results) -> list[CheckResult]:
    """The control and each check of each variant, in the order of their declaration."""
    declared = results.settings.declaration
    found = []
    if results.control is not None:
        found.append(results.control)
    elif declared.control is not None and declared.primary is not None:
        found.append(_own_control(results, declared.control, declared.primary))
    for check in declared.checks:
        found += [_checked(results, check, variant) for variant in check.variants or declared.variants]
    return found


def _checked(results: Results, check: Check, variant: str) -> CheckResult:
    values = results.values(variant, check.metric, check.measure)
    own = [values[seed] for seed in results.settings.declaration.usable if seed in values]
    mean = fmean(own) if own else math.nan
    passed = mean >= check.at_least
    measured = "not measured" if math.isnan(mean) else figures(mean)
    name = f"{check.metric}, {check.measure.replace('_', ' ')}, at least {check.at_least:g}"
    return CheckResult(
        name=name,
        variant=variant,
        value=None if math.isnan(mean) else mean,
        passed=passed,
        is_control=False,
        sentence=f"{variant}: {name}: {measured}, {'passed' if passed else 'missed'}",
    )


def _own_control(results: Results, control: Control, primary: Primary) -> CheckResult:
    """Whether the control's difference is significant, at alpha, in its expected direction."""
    declared = results.settings.declaration
    comparison = control.comparison(declared.baseline)
    expected = comparison.expected
    pairs = pairs_of(results, comparison, primary, declared.margin or math.nan)
    outcome = outcome_of(
        expected,
        pairs.difference or 0.0,
        p=pairs.p,
        p_equal=math.nan,
        adjusted_p=pairs.p,
        alpha=declared.alpha,
        comparisons=1,
    )
    passed = outcome is Outcome.SHOWN
    return CheckResult(
        name=f"positive control: {comparison_name(comparison, primary)}, {expected}",
        variant=comparison.variant,
        value=pairs.difference,
        passed=passed,
        is_control=True,
        sentence=control_sentence(comparison, primary, pairs, declared.alpha, passed=passed),
    )


def _control_of(grid: str) -> CheckResult:
    """The own control of another grid; missed where it has none or cannot be read."""

    def missed(why: str) -> CheckResult:
        name = f"positive control of {grid}"
        return CheckResult(name, grid, None, passed=False, is_control=True, sentence=f"{name}: missed; {why}")

    try:
        other, _ = read_any(Path(grid))
    except AblationError as error:
        return missed(str(error))
    control, primary = other.settings.control, other.settings.primary
    if control is None or control.variant is None or primary is None:
        return missed("that grid declares no control of its own")
    found = _own_control(other, control, primary)
    return replace(found, name=f"{found.name} (of {grid})", sentence=f"{found.sentence} (of {grid})")
