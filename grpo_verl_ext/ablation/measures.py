"""Numbers of curves, and differences of variants, paired by seed, with their intervals and tests."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import integrate, special, stats

from grpo_verl_ext.ablation.state import STEP_SECONDS
from grpo_verl_ext.ablation.table import Results

CONFIDENCE = 0.95


def curves_of(results: Results, metric: str) -> dict[tuple[str, int], pd.Series[float]]:
    """(variant, seed) → the metric by step, steps rising, of each run that is compared and has it."""
    rows = results.table[results.table["metric"] == metric].set_index("step")
    found = {name: own["value"] for name, own in rows.groupby("run", observed=True, sort=False)}
    return {(run.variant, run.seed): found[run.name] for run in results.compared if run.name in found}


def steps_of_most(curves: Mapping[tuple[str, int], pd.Series[float]]) -> set[int]:
    """The steps that more than half of the curves have."""
    counted = Counter(step for curve in curves.values() for step in curve.index)
    return {step for step, count in counted.items() if 2 * count > len(curves)}


def _area(curve: pd.Series[float]) -> float:
    """Area under the curve by trapezoids, divided by its width; of one point, its value."""
    width = curve.index[-1] - curve.index[0]
    return float(integrate.trapezoid(curve, curve.index) / width if width else curve.iloc[-1])


def _second_half(curve: pd.Series[float]) -> float:
    """Mean over the steps after half of the last one."""
    last = curve.index[-1]
    return float(curve.loc[min(last // 2 + 1, last) :].mean(skipna=False))


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
            if usual and curve.index[-1] >= last and usual <= {*curve.index}:
                for name, number in MEASURES.items():
                    found[name][variant][seed] = number(curve[curve.index.isin(usual)])
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

    @property
    def starts(self) -> int:
        """Number of common seeds."""
        return len(self.by_seed)


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
    """Adjust p-values by Holm's rule; NaN, a comparison that was not tested, counts as 1 and stays NaN."""
    from statsmodels.stats.multitest import multipletests  # it takes half a second, and few grids need it

    adjusted = multipletests(np.nan_to_num(p_values, nan=1.0), method="holm")[1]
    return np.where(np.isnan(p_values), np.nan, adjusted)


def curves_by_variant(results: Results, metric: str) -> dict[str, pd.DataFrame]:
    """Variant, the baseline first → its curves by seed, at the steps that all of them have."""
    found, curves = {}, curves_of(results, metric)
    for variant in results.variants:
        own = {seed: curve for (name, seed), curve in curves.items() if name == variant}
        if own and len(shared := pd.concat(own, axis=1, join="inner")):
            found[variant] = shared
    return found


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
