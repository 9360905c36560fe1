"""What a few seeds can say: intervals over seeds, and differences paired by seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import stats

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Summary:
    """One variant over its seeds; std and interval are None with fewer than two, or where a value is NaN."""

    seeds: int
    mean: float
    std: float | None
    """With n − 1."""
    low: float | None
    high: float | None
    """mean ± t_{n−1} · std / √n, 95 %."""


@dataclass(frozen=True)
class Comparison:
    """A variant minus the baseline over the seeds of both; None where too few seeds say nothing."""

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
    """Seeds with which the variant is higher."""
    probability_higher: float | None
    """That the mean difference is positive, from the same t-distribution (flat prior)."""


def summarize(values: Sequence[float]) -> Summary:
    """Mean, spread and interval.

    Raises:
        ValueError: no value.
    """
    if not values:
        raise ValueError("there is no value to summarize")
    mean = math.fsum(values) / len(values)
    spread = _spread(values)
    if spread is None:
        return Summary(len(values), mean, None, None, None)
    half = _half_width(spread, len(values))
    return Summary(len(values), mean, spread, mean - half, mean + half)


def compare(variant: dict[int, float], baseline: dict[int, float]) -> Comparison | None:
    """Pair by seed; None if no seed is common.

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
    if not whole.std:
        # One seed, the same difference with every seed, or NaN: no t-distribution.
        return Comparison(whole.seeds, whole.mean, whole.low, whole.high, None, None, wins, None)
    t = whole.mean / (whole.std / math.sqrt(whole.seeds))
    return Comparison(
        seeds=whole.seeds,
        difference=whole.mean,
        low=whole.low,
        high=whole.high,
        p=float(stats.ttest_1samp(differences, 0).pvalue),
        effect=whole.mean / whole.std,
        wins=wins,
        probability_higher=float(stats.t.cdf(t, whole.seeds - 1)),
    )


def adjusted(p_values: Sequence[float | None]) -> list[float | None]:
    """Benjamini–Hochberg over the comparisons that have a p-value."""
    known = [p for p in p_values if p is not None]
    corrected = iter(stats.false_discovery_control(known) if known else ())
    return [None if p is None else float(next(corrected)) for p in p_values]


def caution(seeds: int, half_width: float | None) -> str | None:
    """An honest word where seeds are few.

    Args:
        half_width: of the interval of a difference.
    """
    if seeds < 2:
        return "one seed: two runs of the same variant may differ as much; nothing can be concluded"
    if seeds < 5 and half_width is not None:
        return (
            f"{seeds} seeds: a difference below {half_width:.3g} cannot be told from chance here; "
            f"twice as many seeds make the interval narrower by about √2"
        )
    return None


def _spread(values: Sequence[float]) -> float | None:
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return None
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def _half_width(spread: float, count: int) -> float:
    quantile = float(stats.t.ppf((1 + CONFIDENCE) / 2, count - 1))
    return quantile * spread / math.sqrt(count)
