"""Say a verdict, and the result of a control, in one sentence."""

from __future__ import annotations

from grpo_verl_ext.ablation.declaration.comparisons import Comparison, Primary
from grpo_verl_ext.ablation.statistics.pairs import Pairs
from grpo_verl_ext.ablation.statistics.power import MANY, POWER
from grpo_verl_ext.ablation.statistics.verdicts import Outcome, Verdict

OTHER = {"higher": "lower", "lower": "higher"}


def verdict_reason(verdict: Verdict, margin: float) -> str:
    """The rest of the sentence of a verdict that the tests decided."""
    if verdict.p is None or verdict.adjusted_p is None or verdict.p_equal is None:
        raise ValueError(f"{verdict.variant} − {verdict.against} was not tested")
    expected, within = verdict.expected, f"within ±{margin:g}"
    if verdict.outcome is Outcome.SHOWN:
        said = f"equal {within}" if expected == "equal" else f"{expected}, as expected"
        return f"{said} ({p_text(verdict.adjusted_p)})"
    if verdict.outcome is Outcome.OPPOSITE:
        decisive = verdict.p if expected == "equal" else verdict.adjusted_p
        return f"{OTHER.get(expected, 'different')} where {expected} was expected ({p_text(decisive)})"
    if verdict.outcome is Outcome.EQUAL:
        return f"{within} ({p_text(verdict.p_equal)})"
    different, equal = p_text(verdict.p), p_text(verdict.p_equal)
    if expected == "equal":
        equal = f"{p_text(verdict.adjusted_p)} after Holm"
    else:
        different = f"{p_text(verdict.adjusted_p)} after Holm"
    return f"{different}; equality {within}: {equal}; {_needs(verdict, margin)}"


def control_sentence(
    comparison: Comparison, primary: Primary, pairs: Pairs, alpha: float, *, passed: bool
) -> str:
    """``positive control lr1e-3 − grpo, area of acc, 8 starts: −0.320 (…): shown (p < 0.0001)``."""
    outcome = "shown" if passed else f"missed; {comparison.expected} was expected"
    why = pairs.why or p_text(pairs.p)
    return f"positive control {measured(comparison, primary, pairs, alpha)}: {outcome} ({why})"


def measured(comparison: Comparison, primary: Primary, pairs: Pairs, alpha: float) -> str:
    """``gvpo − grpo, area of acc, 12 starts: +0.021 (−0.008 … 0.050)``, as far as it is known."""
    starts = "1 start" if pairs.starts == 1 else f"{pairs.starts} starts"
    text = f"{comparison_name(comparison, primary)}, {starts}"
    if pairs.difference is None:
        return text
    text += f": {figures(pairs.difference, '+')}"
    interval = pairs.interval(alpha)
    return text if interval is None else f"{text} ({figures(interval[0])} … {figures(interval[1])})"


def comparison_name(comparison: Comparison, primary: Primary) -> str:
    """``gvpo − grpo, area of acc``."""
    measure = primary.measure.replace("_", " ")
    return f"{comparison.variant} − {comparison.against}, {measure} of {primary.metric}"


def figures(value: float, sign: str = "") -> str:
    """Three decimals, or two figures where these would be zeros or one figure; with a true minus sign."""
    decimals = value == 0 or abs(value) >= 0.01
    text = f"{value:{sign}.3f}" if decimals else f"{value:{sign}.2g}"
    return text.replace("-", "−")


def p_text(p: float) -> str:
    """``p = 0.034``, in two figures below 0.01."""
    if p < 0.0001:
        return "p < 0.0001"
    return f"p = {p:.2g}" if p < 0.01 else f"p = {p:.3f}"


def _needs(verdict: Verdict, margin: float) -> str:
    needed = verdict.starts_needed or 0
    if needed <= verdict.starts:
        return f"{needed} starts are enough to find {margin:g} with {POWER:.0%}"
    if needed >= MANY:
        return f"{margin:g} needs {MANY} starts or more"
    more = needed - verdict.starts
    minutes = "" if verdict.minutes_needed is None else f" ({verdict.minutes_needed:.0f} minutes)"
    return f"{margin:g} needs {more} more start{'s' * (more > 1)}{minutes}"
