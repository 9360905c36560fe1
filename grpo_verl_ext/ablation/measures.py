"""What a run's metrics come to: one number each, from its file alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from grpo_verl_ext.runs.metrics import Metrics

Curve = Sequence[tuple[int, float]]
"""(step, value), steps rising."""

STEP_SECONDS = "timing_s/step"
TOKENS = "perf/total_num_tokens"
MEMORY = "actor/perf/max_memory_allocated_gb"


def curve(metrics: Metrics, name: str) -> Curve:
    """One metric over the steps that have it."""
    return [(step, values[name]) for step, values in sorted(metrics.items()) if name in values]


def final(points: Curve) -> float:
    """The last value."""
    return points[-1][1]


def best(points: Curve) -> float:
    """The highest value: of noisy curves more than any one measurement deserves."""
    return max(value for _, value in points)


def area(points: Curve) -> float:
    """Area under the curve over its width, by trapezoids: the mean on the way. A point is its own mean."""
    width = points[-1][0] - points[0][0]
    if width == 0:
        return points[-1][1]
    parts = ((right - left) * (low + high) / 2 for (left, low), (right, high) in pairwise(points))
    return sum(parts) / width


def first_step_at(points: Curve, threshold: float) -> int | None:
    """The first measured step with a value of at least ``threshold``."""
    return next((step for step, value in points if value >= threshold), None)


def seconds_until(metrics: Metrics, step: int) -> float:
    """Wall-clock seconds of all steps up to and with this one; starting up is not counted."""
    return sum(values.get(STEP_SECONDS, 0.0) for number, values in metrics.items() if number <= step)


MEASURES: dict[str, Callable[[Curve], float]] = {"final": final, "best": best, "area": area}
"""What is compared between variants, for each metric."""


def costs(metrics: Metrics) -> dict[str, float]:
    """Seconds of all steps, tokens of prompts and responses trained on, peak memory of the actor in GB."""
    memory = [values[MEMORY] for values in metrics.values() if MEMORY in values]
    return {
        "seconds": seconds_until(metrics, max(metrics, default=0)),
        "tokens": sum(values.get(TOKENS, 0.0) for values in metrics.values()),
        "memory_gb": max(memory, default=0.0),
    }
