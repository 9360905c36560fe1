"""Numbers of curves, and comparisons of variants over few seeds: intervals, and differences paired by seed.

The table of the results becomes curves, these become numbers, and these the rows of the report.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import integrate, special, stats

from grpo_verl_ext.ablation.state import STEP_SECONDS
from grpo_verl_ext.ablation.table import Results

# statsmodels is imported where it is needed: it takes half a second, and exploratory grids need none of it.

CONFIDENCE = 0.95
NO_SPREAD = 1e-12
"""Standard deviations below this share of the values are rounding."""


def curves_of(results: Results, metric: str) -> dict[tuple[str, int], pd.Series[float]]:
    """(variant, seed) → the metric by step, steps rising, of each run that is compared and has it."""
    rows = results.table[results.table["metric"] == metric].set_index("step")
    found = {name: own["value"] for name, own in rows.groupby("run", observed=True, sort=False)}
    return {(run.variant, run.seed): found[run.name] for run in results.compared if run.name in found}


def steps_of_most(curves: Mapping[tuple[str, int], pd.Series[float]]) -> list[int]:
    """The steps that more than half of the curves have, rising."""
    counted = Counter(step for curve in curves.values() for step in curve.index)
    return sorted(step for step, count in counted.items() if 2 * count > len(curves))


def _area(curve: pd.Series[float]) -> float:
    """Area under the curve by trapezoids, divided by its width; of one point, its value."""
    width = curve.index[-1] - curve.index[0]
    return float(integrate.trapezoid(curve, curve.index) / width if width else curve.iloc[-1])


def _second_half(curve: pd.Series[float]) -> float:
    """Mean over the steps after half of the last one."""
    later = curve[2 * curve.index > curve.index[-1]]
    return float((later if len(later) else curve).mean(skipna=False))


MEASURES: dict[str, Callable[[pd.Series[float]], float]] = {
    "final": lambda curve: float(curve.iloc[-1]),
    "best": lambda curve: float(curve.max()),  # on a noisy curve it overstates what was reached
    "area": _area,
    "mean": lambda curve: float(curve.mean(skipna=False)),
    "second_half": _second_half,
}
"""Numbers of a curve that can be compared between variants."""
_EXPLORED = ("final", "best", "area")
"""Those in the rows, for each metric."""


def values_of(results: Results, metric: str, measure: str) -> dict[str, dict[int, float]]:
    """Variant → seed → measure of the finished runs whose curve is whole.

    A whole curve reaches the last step and has all steps that most have; it is measured at these alone, for a
    resumed run may lack steps, or have measured one that the others have not.
    """
    if metric not in results.values:
        curves = curves_of(results, metric)
        usual, last = steps_of_most(curves), results.settings.steps
        found = {name: {variant: dict[int, float]() for variant in results.variants} for name in MEASURES}
        for (variant, seed), curve in curves.items():
            if usual and curve.index[-1] >= last and {*usual} <= {*curve.index}:
                for name, number in MEASURES.items():
                    found[name][variant][seed] = number(curve[usual])
        results.values[metric] = found
    return results.values[metric][measure]


def interval(values: NDArray[np.float64], level: float) -> tuple[NDArray[np.float64], ...]:
    """Mean, standard deviation (n − 1) and mean ± t_{(1+level)/2, n−1} · std / √n.

    Args:
        values: ``(…, n)``.

    Returns:
        Mean, standard deviation, low and high, each ``(…)``; all but the mean are NaN for n = 1.
    """
    count, mean = values.shape[-1], values.mean(axis=-1)
    std = values.std(axis=-1, ddof=1) if count > 1 else np.full_like(mean, math.nan)
    half = special.stdtrit(count - 1, (1 + level) / 2) * std / math.sqrt(count)
    return mean, std, mean - half, mean + half


def summarize(values: Sequence[float]) -> dict[str, Any]:
    """Number of seeds, mean, standard deviation and 95 % interval; None with one seed, and for a NaN."""
    numbers: list[float | None] = [fmean(values), None, None, None]
    if len(values) > 1 and all(map(math.isfinite, values)):
        numbers = [float(each) for each in interval(np.array(values), CONFIDENCE)]
    return {"seeds": len(values), **dict(zip(("mean", "std", "low", "high"), numbers, strict=True))}


@dataclass(frozen=True)
class _Versus:
    """A variant minus another over their common seeds; None where the seeds are too few or do not differ."""

    seeds: int
    difference: float
    low: float | None = None
    high: float | None = None
    """95 % interval of the mean difference: Student's t on the differences of the pairs."""
    p: float | None = None
    """Two-sided paired t-test."""


def compare(variant: Mapping[int, float], baseline: Mapping[int, float]) -> _Versus | None:
    """Compare two variants, each seed → value, paired by seed; None without a common seed."""
    common = sorted(variant.keys() & baseline.keys())
    if not common:
        return None
    differences = [variant[seed] - baseline[seed] for seed in common]
    whole = summarize(differences)
    largest = max(abs(value) for seed in common for value in (variant[seed], baseline[seed]))
    if whole["std"] is None or whole["std"] <= NO_SPREAD * largest:
        # One seed, the same difference with every seed but for rounding, or NaN: no t-distribution.
        return _Versus(len(common), whole["mean"])
    p = float(stats.ttest_1samp(differences, 0.0).pvalue)
    return _Versus(len(common), whole["mean"], whole["low"], whole["high"], p)


def paired_tests(
    differences: NDArray[np.float64], margin: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Test differences of n pairs for being 0, and for being within ±margin (two one-sided tests).

    Args:
        differences: ``(…, n)`` with n ≥ 2 and some spread.

    Returns:
        The p-values of both, ``(…)``.
    """
    from statsmodels.stats.weightstats import DescrStatsW

    *shape, count = differences.shape
    p = stats.ttest_1samp(differences, 0.0, axis=-1).pvalue
    p_equal = DescrStatsW(differences.reshape(-1, count).T).ttost_mean(-margin, margin)[0]
    return p, np.reshape(p_equal, shape)


def holm(p_values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Adjust the p-values of m comparisons by Holm's rule.

    Args:
        p_values: ``(…, m)``; NaN, a comparison that could not be tested, counts as 1 and keeps its place.
    """
    from statsmodels.stats.multitest import multipletests

    known = np.nan_to_num(p_values, nan=1.0)
    adjusted = np.apply_along_axis(lambda each: multipletests(each, method="holm")[1], -1, known)
    return np.where(np.isnan(p_values), np.nan, adjusted)


@dataclass(frozen=True)
class Band:
    """The curve of one variant over its finished seeds, at the steps that all of them measured."""

    variant: str
    number: int
    """Index of the variant, which fixes its colour and marker in every figure."""
    steps: list[int]
    seeds: NDArray[np.float64]
    """(seeds, steps)"""
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    """95 % interval, by step; NaN with one seed."""


def bands(results: Results, metric: str) -> list[Band]:
    """The curves of a metric, the baseline first, without variants that do not have it."""
    found, curves = [], curves_of(results, metric)
    for number, variant in enumerate(results.variants):
        own = [curves.get((variant, seed), pd.Series(dtype=float)) for seed in results.seeds_of(variant)]
        shared = pd.concat(own, axis=1, join="inner").sort_index() if own else pd.DataFrame()
        if len(shared):
            values = shared.to_numpy()
            mean, _, low, high = interval(values, CONFIDENCE)
            found.append(Band(variant, number, shared.index.tolist(), values.T, mean, low, high))
    return found


def report_rows(results: Results) -> list[dict[str, Any]]:
    """One for each metric, measure and variant that has finished runs with the metric, as plain values.

    They are those of `summarize`, ``versus_`` and `_Versus`, ``adjusted_p`` after Benjamini–Hochberg over the
    variants of this metric and measure, and ``by_seed``.
    """
    primary, baseline = results.settings.primary, results.settings.base_variant
    numbers: list[tuple[str, str]] = [(primary.metric, primary.measure)] if primary else []
    numbers += [(metric, measure) for metric in results.settings.metrics for measure in _EXPLORED]
    rows: list[dict[str, Any]] = []
    for metric, measure in dict.fromkeys(numbers):
        values, tested = values_of(results, metric, measure), []
        for variant in (name for name in results.variants if values[name]):
            row: dict[str, Any] = {"metric": metric, "measure": measure, "variant": variant}
            row |= summarize([*values[variant].values()])
            versus = None if variant == baseline else compare(values[variant], values[baseline])
            row |= {f"versus_{name}": value for name, value in (vars(versus) if versus else {}).items()}
            rows.append(row | {"adjusted_p": None, "by_seed": values[variant]})
            tested += [rows[-1]] if row.get("versus_p") is not None else []
        corrected = stats.false_discovery_control([row["versus_p"] for row in tested]) if tested else ()
        for row, p in zip(tested, corrected, strict=True):
            row["adjusted_p"] = float(p)
    return rows


_COSTS = {
    "seconds": (STEP_SECONDS, "sum"),
    "tokens": ("perf/total_num_tokens", "sum"),
    "memory_gb": ("actor/perf/max_memory_allocated_gb", "max"),
}


def costs_of(results: Results) -> dict[str, dict[str, float]]:
    """What a run of each variant took, mean over its finished runs.

    Seconds of all steps, tokens of prompts and responses trained on, the actor's peak memory in GB.
    """
    logged = {
        name: {run: float(curve.agg(how)) for run, curve in curves_of(results, metric).items()}
        for name, (metric, how) in _COSTS.items()
    }
    return {
        variant: {name: fmean(of.get((variant, seed), 0.0) for seed in seeds) for name, of in logged.items()}
        for variant in results.variants
        if (seeds := results.seeds_of(variant))
    }
