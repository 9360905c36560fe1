"""Numbers of curves, and statistics of them over few seeds: intervals, and differences paired by seed.

The table of the results becomes curves, these become numbers, and these the rows of the report.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from scipy import special, stats

from grpo_verl_ext.ablation.running.results import Results
from grpo_verl_ext.ablation.running.state import STEP_SECONDS

CONFIDENCE = 0.95
NO_SPREAD = 1e-12
"""Standard deviations below this share of the values are rounding."""
_Curve = list[tuple[int, float]]
"""(step, value), steps rising."""
Curves = Mapping[tuple[str, int], _Curve]
"""(variant, seed) → curve."""


def curves_of(results: Results, metric: str) -> dict[tuple[str, int], _Curve]:
    """The curve of a metric by variant and seed, for each run that is compared and has it."""
    rows = results.table[results.table["metric"] == metric]
    columns = [rows[name].tolist() for name in ("variant", "seed", "step", "value")]
    found: dict[tuple[str, int], _Curve] = {}
    for variant, seed, step, value in zip(*columns, strict=True):
        found.setdefault((variant, seed), []).append((step, value))
    compared = [(run.variant, run.seed) for run in results.compared]
    return {run: found[run] for run in compared if run in found}


def steps_of_most(curves: Curves) -> list[int]:
    """The steps that more than half of the curves have, rising."""
    counted = Counter(step for points in curves.values() for step, _ in points)
    return sorted(step for step, count in counted.items() if 2 * count > len(curves))


def whole_curves(results: Results, metric: str) -> dict[tuple[str, int], _Curve]:
    """The curves that reach the last step and lack none of those that most have, at these steps alone.

    A resumed run may lack steps, or have measured one that the others have not.
    """
    curves, found = curves_of(results, metric), {}
    usual = steps_of_most(curves)
    for run, points in curves.items():
        values = dict(points)
        if usual and points[-1][0] >= results.settings.steps and values.keys() >= {*usual}:
            found[run] = [(step, values[step]) for step in usual]
    return found


def final(points: _Curve) -> float:
    """The last value."""
    return points[-1][1]


def best(points: _Curve) -> float:
    """The highest finite value, NaN without one; on a noisy curve it overstates what was reached."""
    return max((value for _, value in points if math.isfinite(value)), default=math.nan)


def area(points: _Curve) -> float:
    """Area under the curve divided by its width, by trapezoids: the mean on the way.

    A curve of one point has that value.
    """
    width = points[-1][0] - points[0][0]
    if width == 0:
        return points[-1][1]
    parts = ((right - left) * (low + high) / 2 for (left, low), (right, high) in pairwise(points))
    return sum(parts) / width


def _mean(points: _Curve) -> float:
    return math.fsum(value for _, value in points) / len(points)


def _second_half(points: _Curve) -> float:
    """Mean over the steps after half of the last one."""
    return _mean([(step, value) for step, value in points if 2 * step > points[-1][0]] or points)


MEASURES: dict[str, Callable[[_Curve], float]] = {
    "final": final,
    "best": best,
    "area": area,
    "mean": _mean,
    "second_half": _second_half,
}
"""Numbers of a curve that can be compared between variants."""

_EXPLORED = ("final", "best", "area")
"""Those in the tables, for each metric."""


def values_of(results: Results, metric: str, measure: str) -> dict[str, dict[int, float]]:
    """Variant → seed → measure of the finished runs whose curve is whole: see `whole_curves`."""
    if metric not in results.values:
        found: dict[str, dict[str, dict[int, float]]] = {
            name: {variant: {} for variant in results.variants} for name in MEASURES
        }
        for (variant, seed), points in whole_curves(results, metric).items():
            for name, number in MEASURES.items():
                found[name][variant][seed] = number(points)
        results.values[metric] = found
    return results.values[metric][measure]


@dataclass(frozen=True)
class _Summary:
    """One variant over its seeds; std and interval are None with one seed, and where a value is NaN."""

    seeds: int
    mean: float
    std: float | None
    """Standard deviation with n − 1."""
    low: float | None
    high: float | None
    """mean ± t_{n−1} · std / √n, 95 %."""


@dataclass(frozen=True)
class VersusBaseline:
    """A variant minus the baseline over their common seeds; None where the seeds are too few."""

    seeds: int
    difference: float
    low: float | None
    high: float | None
    """95 % interval of the mean difference: Student's t on the differences of the pairs."""
    p: float | None
    """Two-sided paired t-test."""
    effect: float | None
    """Cohen's d_z: mean of the differences over their standard deviation."""
    wins: int
    """Number of seeds with which the variant is higher."""
    decided: int
    """Number of seeds with which both values are finite."""
    probability_higher: float | None
    """Probability that the mean difference is positive, from the same t-distribution (flat prior)."""


def summarize(values: Sequence[float]) -> _Summary:
    """Mean, standard deviation and 95 % interval.

    Raises:
        ValueError: no value.
    """
    if not values:
        raise ValueError("there is no value to summarize")
    count, mean = len(values), math.fsum(values) / len(values)
    if count < 2 or not all(map(math.isfinite, values)):
        return _Summary(count, mean, None, None, None)
    std = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    return _Summary(count, mean, std, *interval(mean, std, count, CONFIDENCE))


def interval(mean: float, std: float, count: int, level: float) -> tuple[float, float]:
    """mean ± t_{(1+level)/2, n−1} · std / √n."""
    half = float(special.stdtrit(count - 1, (1 + level) / 2)) * std / math.sqrt(count)
    return mean - half, mean + half


def compare(variant: dict[int, float], baseline: dict[int, float]) -> VersusBaseline | None:
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
    wins = sum(difference > 0 for difference in differences)
    decided = sum(map(math.isfinite, differences))
    largest = max(abs(value) for seed in common for value in (variant[seed], baseline[seed]))
    if whole.std is None or whole.std <= NO_SPREAD * largest:
        # One seed, the same difference with every seed but for rounding, or NaN: no t-distribution.
        return VersusBaseline(whole.seeds, whole.mean, None, None, None, None, wins, decided, None)
    t = whole.mean / (whole.std / math.sqrt(whole.seeds))
    return VersusBaseline(
        seeds=whole.seeds,
        difference=whole.mean,
        low=whole.low,
        high=whole.high,
        p=2 * float(special.stdtr(whole.seeds - 1, -abs(t))),
        effect=whole.mean / whole.std,
        wins=wins,
        decided=decided,
        probability_higher=float(special.stdtr(whole.seeds - 1, t)),
    )


def adjusted(p_values: Sequence[float | None]) -> list[float | None]:
    """p-values after Benjamini–Hochberg over those that are not None."""
    known = [p for p in p_values if p is not None]
    corrected = iter(stats.false_discovery_control(known) if known else ())
    return [None if p is None else float(next(corrected)) for p in p_values]


@dataclass(frozen=True)
class Band:
    """The curve of one variant over its finished seeds, at the steps that all of them measured."""

    variant: str
    number: int
    """Index of the variant, which fixes its colour and marker in every figure."""
    steps: list[int]
    seeds: list[list[float]]
    """For each seed a value per step."""
    summaries: list[_Summary]


def bands(results: Results, metric: str) -> list[Band]:
    """The curves of a metric, the baseline first, without variants that do not have it."""
    found = []
    curves = curves_of(results, metric)
    for number, variant in enumerate(results.variants):
        runs = [dict(curves.get((variant, run.seed), ())) for run in results.finished[variant]]
        steps = sorted(set.intersection(*(set(each) for each in runs))) if runs else []
        if steps:
            seeds = [[each[step] for step in steps] for each in runs]
            summaries = [summarize(values) for values in zip(*seeds, strict=True)]
            found.append(Band(variant, number, steps, seeds, summaries))
    return found


@dataclass(frozen=True)
class Row:
    """One variant, metric and measure."""

    metric: str
    measure: str
    variant: str
    by_seed: dict[int, float]
    summary: _Summary
    comparison: VersusBaseline | None
    """With the baseline; None for the baseline itself, and without a common seed."""
    adjusted_p: float | None
    """p-value after Benjamini–Hochberg over the variants of this metric and measure."""


def report_rows(results: Results) -> list[Row]:
    """All rows, metric by metric, without variants that have no finished run with the metric."""
    primary = results.settings.primary
    numbers = [(metric, measure) for metric in results.settings.metrics for measure in _EXPLORED]
    if primary is not None:
        numbers = list(dict.fromkeys([(primary.metric, primary.measure), *numbers]))
    return [row for metric, measure in numbers for row in _rows(results, metric, measure)]


def _rows(results: Results, metric: str, measure: str) -> list[Row]:
    values = values_of(results, metric, measure)
    there = [variant for variant in results.variants if values[variant]]
    comparisons = [
        None if variant == results.baseline else compare(values[variant], values[results.baseline])
        for variant in there
    ]
    p_values = adjusted([comparison.p if comparison else None for comparison in comparisons])
    return [
        Row(metric, measure, variant, values[variant], summarize([*values[variant].values()]), comparison, p)
        for variant, comparison, p in zip(there, comparisons, p_values, strict=True)
    ]


_TOKENS = "perf/total_num_tokens"
_MEMORY = "actor/perf/max_memory_allocated_gb"


def costs_of(results: Results) -> dict[str, dict[str, float]]:
    """What a run of each variant took, mean over its finished runs.

    Seconds of all steps, tokens of prompts and responses trained on, the actor's peak memory in GB.
    """
    seconds, tokens, memory = (curves_of(results, name) for name in (STEP_SECONDS, _TOKENS, _MEMORY))
    found = {}
    for variant in results.variants:
        runs = [(variant, run.seed) for run in results.finished[variant]]
        if runs:
            found[variant] = {
                "seconds": fmean(sum(value for _, value in seconds.get(run, ())) for run in runs),
                "tokens": fmean(sum(value for _, value in tokens.get(run, ())) for run in runs),
                "memory_gb": fmean(
                    max((value for _, value in memory.get(run, ())), default=0) for run in runs
                ),
            }
    return found


def reached(results: Results, threshold: float) -> dict[str, list[tuple[int, int | None, float | None]]]:
    """When the first metric first reaches the threshold.

    Returns:
        Variant → (seed, step, seconds of all steps so far) of each finished run; None: it never does.
    """
    curves, seconds = curves_of(results, results.settings.metrics[0]), curves_of(results, STEP_SECONDS)
    found: dict[str, list[tuple[int, int | None, float | None]]] = {name: [] for name in results.variants}
    for variant in results.variants:
        for run in results.finished[variant]:
            key = (variant, run.seed)
            step = first_step_at(curves.get(key, []), threshold)
            until = [value for number, value in seconds.get(key, ()) if step is not None and number <= step]
            found[variant].append((run.seed, step, None if step is None else sum(until)))
    return found


def first_step_at(points: _Curve, threshold: float) -> int | None:
    """The first measured step with a value of at least ``threshold``."""
    return next((step for step, value in points if value >= threshold), None)
