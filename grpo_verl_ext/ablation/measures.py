"""Numbers of curves, and comparisons of variants over few seeds: intervals, and differences paired by seed.

The table of the results becomes curves, these become numbers, and these the rows of the report.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
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
_Curves = Mapping[tuple[str, int], "pd.Series[float]"]
"""(variant, seed) → values by step, steps rising."""


def curves_of(results: Results, metric: str) -> dict[tuple[str, int], pd.Series[float]]:
    """The curve of a metric by variant and seed, for each run that is compared and has it."""
    rows = results.table[results.table["metric"] == metric].set_index("step")
    found = {name: own["value"] for name, own in rows.groupby("run", observed=True, sort=False)}
    return {(run.variant, run.seed): found[run.name] for run in results.compared if run.name in found}


def steps_of_most(curves: _Curves) -> list[int]:
    """The steps that more than half of the curves have, rising."""
    counted = Counter(step for curve in curves.values() for step in curve.index)
    return sorted(step for step, count in counted.items() if 2 * count > len(curves))


def _whole_curves(results: Results, metric: str) -> dict[tuple[str, int], pd.Series[float]]:
    """The curves that reach the last step and lack none of those that most have, at these steps alone.

    A resumed run may lack steps, or have measured one that the others have not.
    """
    curves, last = curves_of(results, metric), results.settings.steps
    usual = steps_of_most(curves)
    return {
        run: curve[usual]
        for run, curve in curves.items()
        if usual and curve.index[-1] >= last and {*usual} <= {*curve.index}
    }


def _area(curve: pd.Series[float]) -> float:
    """Area under the curve divided by its width, by trapezoids: the mean on the way.

    A curve of one point has that value.
    """
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
"""Those in the tables, for each metric."""


def values_of(results: Results, metric: str, measure: str) -> dict[str, dict[int, float]]:
    """Variant → seed → measure of the finished runs whose curve is whole: see `_whole_curves`."""
    if metric not in results.values:
        curves = _whole_curves(results, metric)
        results.values[metric] = {
            name: {
                variant: {seed: number(curve) for (own, seed), curve in curves.items() if own == variant}
                for variant in results.variants
            }
            for name, number in MEASURES.items()
        }
    return results.values[metric][measure]


@dataclass(frozen=True)
class _Summary:
    """One variant over its seeds; std and the 95 % interval are None with one seed, and for a NaN."""

    seeds: int
    mean: float
    std: float | None = None
    """Standard deviation with n − 1."""
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class _Versus:
    """A variant minus the baseline over their common seeds; None where the seeds are too few."""

    seeds: int
    difference: float
    wins: int
    """Number of seeds with which the variant is higher."""
    decided: int
    """Number of seeds with which both values are finite."""
    low: float | None = None
    high: float | None = None
    """95 % interval of the mean difference: Student's t on the differences of the pairs."""
    p: float | None = None
    """Two-sided paired t-test."""
    effect: float | None = None
    """Cohen's d_z: mean of the differences over their standard deviation."""
    probability_higher: float | None = None
    """Probability that the mean difference is positive, from the same t-distribution (flat prior)."""


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


def summarize(values: Sequence[float]) -> _Summary:
    """Mean, standard deviation and 95 % interval.

    Raises:
        ValueError: no value.
    """
    if not values:
        raise ValueError("there is no value to summarize")
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return _Summary(len(values), fmean(values))
    return _Summary(len(values), *map(float, interval(np.array(values), CONFIDENCE)))


def compare(variant: dict[int, float], baseline: dict[int, float]) -> _Versus | None:
    """Compare two variants, paired by seed; None without a common seed.

    Args:
        variant: seed → value.
        baseline: seed → value.
    """
    common = sorted(variant.keys() & baseline.keys())
    if not common:
        return None
    differences = [variant[seed] - baseline[seed] for seed in common]
    whole = summarize(differences)
    counts = {
        "wins": sum(difference > 0 for difference in differences),
        "decided": sum(map(math.isfinite, differences)),
    }
    largest = max(abs(value) for seed in common for value in (variant[seed], baseline[seed]))
    if whole.std is None or whole.std <= NO_SPREAD * largest:
        # One seed, the same difference with every seed but for rounding, or NaN: no t-distribution.
        return _Versus(whole.seeds, whole.mean, **counts)
    tested = stats.ttest_1samp(differences, 0.0)
    return _Versus(
        seeds=whole.seeds,
        difference=whole.mean,
        low=whole.low,
        high=whole.high,
        p=float(tested.pvalue),
        effect=whole.mean / whole.std,
        probability_higher=float(stats.t.cdf(tested.statistic, tested.df)),
        **counts,
    )


@dataclass(frozen=True)
class _PairedTests:
    """Paired t-tests, elementwise."""

    p: NDArray[np.float64]
    p_equal: NDArray[np.float64]


def paired_tests(differences: NDArray[np.float64], margin: float) -> _PairedTests:
    """Test differences of n pairs for being 0, and for being within ±margin (two one-sided tests).

    Args:
        differences: ``(…, n)`` with n ≥ 2 and some spread.

    Returns:
        Arrays ``(…)``.
    """
    from statsmodels.stats.weightstats import DescrStatsW

    *shape, count = differences.shape
    p = stats.ttest_1samp(differences, 0.0, axis=-1).pvalue
    p_equal = DescrStatsW(differences.reshape(-1, count).T).ttost_mean(-margin, margin)[0]
    return _PairedTests(p, np.reshape(p_equal, shape))


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

    They are `_Summary`, ``versus_`` and `_Versus`, ``adjusted_p`` after Benjamini–Hochberg over the
    variants of this metric and measure, and ``by_seed``.
    """
    primary = results.settings.primary
    numbers = [(metric, measure) for metric in results.settings.metrics for measure in _EXPLORED]
    if primary is not None:
        numbers = list(dict.fromkeys([(primary.metric, primary.measure), *numbers]))
    return [row for metric, measure in numbers for row in _rows(results, metric, measure)]


def _rows(results: Results, metric: str, measure: str) -> list[dict[str, Any]]:
    values, baseline = values_of(results, metric, measure), results.settings.base_variant
    rows = []
    for variant in (name for name in results.variants if values[name]):
        row: dict[str, Any] = {"metric": metric, "measure": measure, "variant": variant}
        row |= asdict(summarize([*values[variant].values()]))
        versus = None if variant == baseline else compare(values[variant], values[baseline])
        row |= {f"versus_{name}": value for name, value in (asdict(versus) if versus else {}).items()}
        rows.append(row | {"adjusted_p": None, "by_seed": values[variant]})
    tested = [row for row in rows if row.get("versus_p") is not None]
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


def reached(results: Results, threshold: float) -> dict[str, list[tuple[int, int | None, float | None]]]:
    """When the first metric first reaches the threshold.

    Returns:
        Variant → (seed, step, seconds of all steps so far) of each finished run; None: it never does.
    """
    curves, seconds = curves_of(results, results.settings.metrics[0]), curves_of(results, STEP_SECONDS)
    found: dict[str, list[tuple[int, int | None, float | None]]] = {name: [] for name in results.variants}
    for run in results.compared:
        curve, key = curves.get((run.variant, run.seed)), (run.variant, run.seed)
        there = [] if curve is None else curve.index[curve >= threshold].tolist()
        taken = float(seconds[key].loc[: there[0]].sum()) if there and key in seconds else 0.0
        found[run.variant].append((run.seed, there[0], taken) if there else (run.seed, None, None))
    return found
