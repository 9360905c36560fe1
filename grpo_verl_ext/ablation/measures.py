"""Numbers of curves, differences of variants paired by seed with intervals and tests, and their power.

Of the power, ``alpha`` is the two-sided level of one comparison. Of several under Holm's rule, the one with
the smallest p is tested at the declared level / number of comparisons, `GridSettings.level`, and the others
at more: the power holds for each whatever the others show, and is understated when others are shown.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import integrate, special, stats

from grpo_verl_ext.ablation.declaration import FEWEST, Primary
from grpo_verl_ext.ablation.table import Results

CONFIDENCE = 0.95
POWER = 0.8
"""Probability with which a difference is to be found."""
MANY = 1000
"""Stands for as many starts or more."""
_EXPLORED = ("final", "best", "area")
"""Measures in the rows, for each metric."""


def curves_of(results: Results, metric: str) -> dict[tuple[str, int], pd.Series[float]]:
    """(variant, seed) → the metric by step, steps rising, of each run that is compared and has it."""
    rows = results.table[results.table["metric"] == metric].set_index("step")
    found = {name: own["value"] for name, own in rows.groupby("run", observed=True, sort=False)}
    return {(run.variant, run.seed): found[run.name] for run in results.compared if run.name in found}


def measured_runs(
    results: Results, metric: str
) -> tuple[dict[tuple[str, int], dict[str, float]], dict[str, list[str]]]:
    """The measures of the compared runs whose curve is whole, and why the others are left out.

    A whole curve reaches the last step and has all steps that most have. It is measured at these alone, for a
    resumed run may lack steps, or have measured one that the others have not. The result is (variant, seed)
    → measure → value, and reason, with {} for the runs → their names.
    """
    if metric in results.measured:
        return results.measured[metric]
    curves, last = curves_of(results, metric), results.settings.steps
    counted = Counter(step for curve in curves.values() for step in curve.index)
    usual = {step for step, count in counted.items() if 2 * count > len(curves)}
    whole, reasons = {}, defaultdict[str, list[str]](list)
    for run in results.compared if curves else ():
        curve = curves.get((run.variant, run.seed))
        if curve is None:
            reasons["is missing in {}"].append(run.name)
        elif curve.index[-1] < last:
            reasons[f"ends at step {curve.index[-1]} of {last} in {{}}"].append(run.name)
        elif lacking := sorted(usual - {*curve.index}):
            steps = ", ".join(map(str, lacking))
            reasons[f"lacks the steps {steps} in {{}}, which most runs have"].append(run.name)
        elif usual:
            whole[run.variant, run.seed] = measured(curve[curve.index.isin(usual)])
    results.measured[metric] = (whole, reasons)
    return whole, reasons


def measured(curve: pd.Series[float]) -> dict[str, float]:
    """Numbers of a curve that can be compared between variants.

    ``area`` is that under the curve by trapezoids, divided by its width; ``second_half`` is the mean over the
    steps after half of the last one. On a noisy curve ``best`` overstates what was reached.
    """
    last, width = curve.index[-1], curve.index[-1] - curve.index[0]
    found = {
        "final": curve.iloc[-1],
        "best": curve.max(),
        "area": integrate.trapezoid(curve, curve.index) / width if width else curve.iloc[-1],
        "mean": curve.mean(skipna=False),
        "second_half": curve.loc[min(last // 2 + 1, last) :].mean(skipna=False),
    }
    return {name: float(value) for name, value in found.items()}


def values_of(results: Results, metric: str, measure: str) -> dict[str, dict[int, float]]:
    """Variant → seed → measure of the finished runs whose curve is whole."""
    found: dict[str, dict[int, float]] = {variant: {} for variant in results.variants}
    for (variant, seed), numbers in measured_runs(results, metric)[0].items():
        found[variant][seed] = numbers[measure]
    return found


def interval(values: NDArray[np.float64], level: float) -> tuple[NDArray[np.float64], ...]:
    """Mean, standard deviation (n − 1) and mean ± t_{(1+level)/2, n−1} · std / √n.

    Of ``values``, ``(…, n)``, each is ``(…)``; all but the mean are NaN for n = 1.
    """
    count, mean = values.shape[-1], values.mean(axis=-1)
    std = values.std(axis=-1, ddof=1) if count > 1 else np.full_like(mean, math.nan)
    half = special.stdtrit(count - 1, (1 + level) / 2) * std / math.sqrt(count)
    return mean, std, mean - half, mean + half


@dataclass(frozen=True, kw_only=True)
class Paired:
    """A variant minus another over their common seeds; None where the seeds are too few or do not differ."""

    by_seed: dict[int, float]
    """Seed → difference."""
    difference: float | None = None
    """Mean of ``by_seed``."""
    low: float | None = None
    high: float | None = None
    """Interval of the mean difference: Student's t on the differences."""
    p: float | None = None
    """Two-sided paired t-test."""


def paired(by_seed: dict[int, float], largest: float, level: float) -> Paired:
    """Test the differences of pairs, unless they scatter by rounding alone, 1e-12 of the ``largest``."""
    mean, std, low, high = map(float, interval(np.array([*by_seed.values()]), level))
    if std > 1e-12 * largest:
        p = float(stats.ttest_1samp([*by_seed.values()], 0.0).pvalue)
        return Paired(by_seed=by_seed, difference=mean, low=low, high=high, p=p)
    return Paired(by_seed=by_seed, difference=mean)


def compare(variant: Mapping[int, float], baseline: Mapping[int, float]) -> Paired | None:
    """Compare two variants, each seed → value, paired by seed; None without a common seed."""
    pairs = {seed: (variant[seed], baseline[seed]) for seed in sorted(variant.keys() & baseline.keys())}
    largest = max((abs(value) for pair in pairs.values() for value in pair), default=0.0)
    differences = {seed: own - base for seed, (own, base) in pairs.items()}
    return paired(differences, largest, CONFIDENCE) if pairs else None


def p_of_equality(differences: NDArray[np.float64], margin: float) -> NDArray[np.float64]:
    """The larger p of two one-sided tests for the differences of pairs, ``(…, n)``, being within ±margin."""
    above = stats.ttest_1samp(differences, -margin, axis=-1, alternative="greater").pvalue
    below = stats.ttest_1samp(differences, margin, axis=-1, alternative="less").pvalue
    return np.asarray(np.maximum(above, below))


def holm(p_values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Adjust p-values by Holm's rule; NaN, a comparison that was not tested, counts as 1 and stays NaN.

    The k-th smallest of n is multiplied by n − k + 1, and is at least the one before it and at most 1.
    """
    order, adjusted = np.argsort(p_values), np.empty_like(p_values)  # NaN comes last
    of_rest = np.nan_to_num(p_values[order], nan=1.0) * np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(np.maximum.accumulate(of_rest), 1.0)
    return np.where(np.isnan(p_values), np.nan, adjusted)


def report_rows(results: Results) -> list[dict[str, Any]]:
    """One for each metric, measure and variant that has finished runs with the metric, as plain values.

    They have number, mean, standard deviation and 95 % interval of the seeds, what `compare` gives as
    ``versus_…``, ``adjusted_p`` after Benjamini–Hochberg over the variants of this metric and measure, and
    ``by_seed``.
    """
    primary, baseline = results.settings.primary, results.settings.base_variant
    numbers: list[tuple[str, str]] = [(primary.metric, primary.measure)] if primary else []
    numbers += [(metric, measure) for metric in results.settings.metrics for measure in _EXPLORED]
    rows: list[dict[str, Any]] = []
    for metric, measure in dict.fromkeys(numbers):
        values, tested = values_of(results, metric, measure), []
        for variant in (name for name in results.variants if values[name]):
            row: dict[str, Any] = {"metric": metric, "measure": measure, "variant": variant}
            summary = map(float, interval(np.array([*values[variant].values()]), CONFIDENCE))
            row |= {"seeds": len(values[variant])}
            row |= zip(("mean", "std", "low", "high"), summary, strict=True)
            if variant != baseline and (versus := compare(values[variant], values[baseline])):
                row |= {f"versus_{name}": value for name, value in vars(versus).items() if name != "by_seed"}
            rows.append(row | {"adjusted_p": None, "by_seed": values[variant]})
            tested += [rows[-1]] if row.get("versus_p") is not None else []
        corrected = stats.false_discovery_control([row["versus_p"] for row in tested]) if tested else ()
        for row, p in zip(tested, corrected, strict=True):
            row["adjusted_p"] = float(p)
    return rows


@dataclass(frozen=True)
class _Spread:
    """Standard deviation of paired differences, and what it was estimated from."""

    sd: float
    """NaN: not known."""
    degrees: int
    """Degrees of freedom."""
    starts: int


def power(difference: float, sd: float, starts: int, alpha: float) -> float:
    """Probability that the two-sided paired t-test finds a true difference with its sign.

    P(T > t_{1−α/2, n−1}), T noncentral t with n − 1 degrees of freedom and noncentrality √n·|difference|/sd.
    ``sd`` is the standard deviation of the paired differences.
    """
    if sd == 0:
        return 1.0
    critical, noncentrality = stats.t.isf(alpha / 2, starts - 1), math.sqrt(starts) * abs(difference) / sd
    found = float(stats.nct.sf(critical, starts - 1, noncentrality))
    # scipy's noncentral t is NaN for some noncentralities above 38, where this probability rounds to 1
    return 1.0 if math.isnan(found) else found


def starts_needed(difference: float, sd: float, alpha: float, first: int = FEWEST, most: int = MANY) -> int:
    """The fewest starts, ``first`` to ``most``, that find the difference with probability `POWER`.

    An ``sd`` of NaN, not known, takes ``most``.
    """
    candidates = () if math.isnan(sd) else range(first, most)
    return next((starts for starts in candidates if power(difference, sd, starts, alpha) >= POWER), most)


def difference_sd(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Standard deviation of paired differences: the root mean square of those of all pairs of variants.

    It assumes that all variants scatter alike around their start. Of ``values``, ``(…, k, n)`` with k ≥ 2
    variants that have the same n ≥ 2 starts, it is ``(…)``.
    """
    pairs = combinations(range(values.shape[-2]), 2)
    variances = [(values[..., i, :] - values[..., j, :]).var(axis=-1, ddof=1) for i, j in pairs]
    return np.asarray(np.sqrt(np.mean(variances, axis=0)))


def spread_of(results: Results, primary: Primary, variants: Sequence[str], seeds: Sequence[int]) -> _Spread:
    """Standard deviation of paired differences of the primary, over the seeds that all variants have.

    It is NaN with fewer than two variants or two such seeds; a seed with a NaN is left out.
    """
    every = values_of(results, primary.metric, primary.measure)
    values = [every[name] for name in variants]
    common = [seed for seed in seeds if all(math.isfinite(each.get(seed, math.nan)) for each in values)]
    degrees = max(0, len(values) - 1) * max(0, len(common) - 1)
    shared = np.array([[each[seed] for seed in common] for each in values])
    return _Spread(float(difference_sd(shared)) if degrees else math.nan, degrees, len(common))


def first_spread(results: Results) -> _Spread | None:
    """The spread over the declared first starts; None until all compared variants have finished them."""
    declared = results.settings
    primary = declared.primary
    if declared.starts is None or primary is None or not declared.expect:
        return None
    first = declared.seeds[: declared.starts.first]
    values = values_of(results, primary.metric, primary.measure)
    if any(seed not in values[name] for name in declared.compared for seed in first):
        return None
    return spread_of(results, primary, declared.compared, first)


def seeds_by_rule(results: Results) -> list[int]:
    """The seeds of the starts that the declaration asks for: verdicts use no others, even finished ones.

    ``starts.first`` of them until these are finished; then what ``margin`` takes at 80 %, at most
    ``starts.most``, by a spread that is blind to the means. Without ``starts``, all. Nothing but the finished
    runs is read, so that the number is the same after a kill.
    """
    declared = results.settings
    if declared.starts is None:
        return declared.seeds
    spread, count = first_spread(results), declared.starts.first
    if spread is not None and declared.margin is not None:
        sd = spread.sd * declared.spread_factor
        count = starts_needed(declared.margin, sd, declared.level, count, declared.starts.most)
    return declared.seeds[:count]


def finished_starts(results: Results, seeds: Sequence[int]) -> int:
    """How many of these starts the compared variants have all finished."""
    finished = {(run.variant, run.seed) for run in results.compared}
    return sum(all((name, seed) in finished for name in results.settings.compared) for seed in seeds)
