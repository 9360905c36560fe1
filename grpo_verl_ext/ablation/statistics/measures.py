"""Statistics over few seeds: Student's t intervals, and differences paired by seed; pass@k."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from scipy import stats

from grpo_verl_ext.runs.metrics import Metrics

CONFIDENCE = 0.95
NO_SPREAD = 1e-12
"""Standard deviations below this share of the values are rounding."""


@dataclass(frozen=True)
class Summary:
    """One variant over its seeds; std and interval are None with one seed, and where a value is NaN."""

    seeds: int
    mean: float
    std: float | None
    """Standard deviation with n − 1."""
    low: float | None
    high: float | None
    """mean ± t_{n−1} · std / √n, 95 %."""


@dataclass(frozen=True)
class Comparison:
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


def summarize(values: Sequence[float]) -> Summary:
    """Mean, standard deviation and 95 % interval.

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
        return Comparison(whole.seeds, whole.mean, None, None, None, None, wins, decided, None)
    t = whole.mean / (whole.std / math.sqrt(whole.seeds))
    return Comparison(
        seeds=whole.seeds,
        difference=whole.mean,
        low=whole.low,
        high=whole.high,
        p=float(stats.ttest_1samp(differences, 0).pvalue),
        effect=whole.mean / whole.std,
        wins=wins,
        decided=decided,
        probability_higher=float(stats.t.cdf(t, whole.seeds - 1)),
    )


def adjusted(p_values: Sequence[float | None]) -> list[float | None]:
    """p-values after Benjamini–Hochberg over those that are not None."""
    known = [p for p in p_values if p is not None]
    corrected = iter(stats.false_discovery_control(known) if known else ())
    return [None if p is None else float(next(corrected)) for p in p_values]


def _spread(values: Sequence[float]) -> float | None:
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return None
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def _half_width(spread: float, count: int) -> float:
    quantile = float(stats.t.ppf((1 + CONFIDENCE) / 2, count - 1))
    return quantile * spread / math.sqrt(count)


def pass_at_k(right: int, total: int, k: int) -> float:
    """Probability that at least one of ``k`` of a prompt's responses, drawn without replacement, is right.

    1 − C(n − c, k)/C(n, k) with c right of n responses: unbiased for k independent responses (arXiv
    2107.03374, eq. 1).

    Differs from verl's ``best@k``, which draws with replacement and is too low.

    Raises:
        ValueError: not 0 ≤ right ≤ total and 1 ≤ k ≤ total.
    """
    if not (0 <= right <= total and 1 <= k <= total):
        raise ValueError(
            f"pass@{k} of {right} right of {total} responses; valid are 0 ≤ right ≤ total, 1 ≤ k ≤ total"
        )
    return 1 - math.comb(total - right, k) / math.comb(total, k)


Curve = Sequence[tuple[int, float]]
"""(step, value), steps rising."""

STEP_SECONDS = "timing_s/step"
TOKENS = "perf/total_num_tokens"
MEMORY = "actor/perf/max_memory_allocated_gb"


def curve(metrics: Metrics, name: str) -> Curve:
    """One metric at the steps that have it."""
    return [(step, values[name]) for step, values in sorted(metrics.items()) if name in values]


def final(points: Curve) -> float:
    """The last value."""
    return points[-1][1]


def best(points: Curve) -> float:
    """The highest finite value, NaN without one; on a noisy curve it overstates what was reached."""
    return max((value for _, value in points if math.isfinite(value)), default=math.nan)


def area(points: Curve) -> float:
    """Area under the curve divided by its width, by trapezoids: the mean on the way.

    A curve of one point has that value.
    """
    width = points[-1][0] - points[0][0]
    if width == 0:
        return points[-1][1]
    parts = ((right - left) * (low + high) / 2 for (left, low), (right, high) in pairwise(points))
    return sum(parts) / width


def mean_of_steps(points: Curve) -> float:
    """Mean over all steps that have a value."""
    return math.fsum(value for _, value in points) / len(points)


def second_half(points: Curve) -> float:
    """Mean over the second half: the steps after half of the last one."""
    return mean_of_steps([(step, value) for step, value in points if 2 * step > points[-1][0]] or points)


def first_step_at(points: Curve, threshold: float) -> int | None:
    """The first measured step with a value of at least ``threshold``."""
    return next((step for step, value in points if value >= threshold), None)


def seconds_until(metrics: Metrics, step: int) -> float:
    """Wall-clock seconds of all steps up to and including this one, without the start of Ray and vLLM."""
    return sum(values.get(STEP_SECONDS, 0.0) for number, values in metrics.items() if number <= step)


MEASURES: dict[str, Callable[[Curve], float]] = {
    "final": final,
    "best": best,
    "area": area,
    "mean": mean_of_steps,
    "second_half": second_half,
}
"""Numbers of a curve that can be compared between variants."""

EXPLORED = ("final", "best", "area")
"""Those in the tables, for each metric."""


def costs(metrics: Metrics) -> dict[str, float]:
    """Seconds of all steps, tokens of prompts and responses trained on, the actor's peak memory in GB."""
    memory = [values[MEMORY] for values in metrics.values() if MEMORY in values]
    return {
        "seconds": seconds_until(metrics, max(metrics, default=0)),
        "tokens": sum(values.get(TOKENS, 0.0) for values in metrics.values()),
        "memory_gb": max(memory, default=0.0),
    }
