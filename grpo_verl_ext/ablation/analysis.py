"""Compare a grid's variants with its baseline: a row for each metric, measure and variant."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from typing import Any

from grpo_verl_ext.ablation.results import Result, Results
from grpo_verl_ext.ablation.run_state import State
from grpo_verl_ext.ablation.statistics import (
    EXPLORED,
    MEASURES,
    Comparison,
    Curve,
    Summary,
    adjusted,
    compare,
    costs,
    curve,
    first_step_at,
    seconds_until,
    summarize,
)
from grpo_verl_ext.ablation.verdicts import CheckResult, Verdict


@dataclass(frozen=True)
class Row:
    """One variant, metric and measure."""

    metric: str
    measure: str
    variant: str
    by_seed: dict[int, float]
    summary: Summary
    comparison: Comparison | None
    """With the baseline; None for the baseline itself, and without a common seed."""
    adjusted_p: float | None
    """p-value after Benjamini–Hochberg over the variants of this metric and measure."""

    def flat(self) -> dict[str, Any]:
        """Without nesting, for CSV."""
        versus = (
            {f"versus_{name}": value for name, value in asdict(self.comparison).items()}
            if self.comparison
            else {}
        )
        return {
            "metric": self.metric,
            "measure": self.measure,
            "variant": self.variant,
            **asdict(self.summary),
            **versus,
            "adjusted_p": self.adjusted_p,
        }


@dataclass(frozen=True)
class Analysis:
    """Everything that a report shows."""

    results: Results
    rows: list[Row]
    costs: dict[str, dict[str, float]]
    threshold: float | None
    reached: dict[str, list[tuple[int, int | None, float | None]]]
    """The result of `reached`; empty without a threshold."""
    missing: list[str]
    """Metrics that no run has, or that end before the last step; a report begins with them."""
    warnings: list[str]
    verdicts: list[Verdict] = field(default_factory=list)
    """One for each declared comparison; empty without a declaration."""
    checks: list[CheckResult] = field(default_factory=list)
    """The positive control and the manipulation checks; empty without a declaration."""


def analyse(results: Results, *, threshold: float | None = None) -> Analysis:
    """Compare the finished runs.

    Args:
        threshold: value of the first metric; when each run first reaches it is part of the analysis.
    """
    rows = rows_of(results)
    return Analysis(
        results=results,
        rows=rows,
        costs=costs_of(results),
        threshold=threshold,
        reached={} if threshold is None else reached(results, threshold),
        missing=missing_metrics(results),
        warnings=all_warnings(results),
    )


def rows_of(results: Results) -> list[Row]:
    """All rows, metric by metric, without variants that have no finished run with the metric."""
    return [
        row
        for metric in results.settings.metrics
        for measure in EXPLORED
        for row in _rows(results, metric, measure)
    ]


def all_warnings(results: Results) -> list[str]:
    """Files that cannot be read, and runs that are not finished."""
    warnings = list(dict.fromkeys(warning for run in results.runs for warning in run.warnings))
    unfinished = [run for run in results.runs if run.state is not State.FINISHED]
    if unfinished:
        names = ", ".join(f"{run.variant}/seed-{run.seed} ({run.state.value})" for run in unfinished)
        warnings.append(f"not finished, and left out: {names}")
    return warnings


def missing_metrics(results: Results) -> list[str]:
    """Name the metrics that no finished run has, and the runs whose curve ends before their last step."""
    finished = [run for run in results.runs if run.state is State.FINISHED]
    found = []
    for metric in results.settings.metrics if finished else ():
        ends = {f"{run.variant}/seed-{run.seed}": curve(run.metrics, metric) for run in finished}
        early = {
            name: points[-1][0] for name, points in ends.items() if points and not _is_whole(points, results)
        }
        if not any(ends.values()):
            names = sorted({name for run in finished for values in run.metrics.values() for name in values})
            near = get_close_matches(metric, names, n=3, cutoff=0.4)
            like = f"; like it are {', '.join(near)}" if near else ""
            found.append(f"metrics has {metric}, which no run has logged{like}. Type: 'metrics=[…]'")
        elif early:
            step = min(early.values())
            found.append(
                f"{metric} ends at step {step} of {results.settings.steps} in {', '.join(early)}: left out, "
                f"for it says nothing of the trained policy. Type in base: trainer.test_freq=<steps between "
                f"validations>"
            )
        if absent := [name for name, points in ends.items() if not points and any(ends.values())]:
            found.append(f"{metric} is missing in {', '.join(absent)}: left out")
    return found


def _is_whole(points: Curve, results: Results) -> bool:
    """Whether a curve reaches the last step, so that its last value is that of the trained policy."""
    return bool(points) and points[-1][0] >= results.settings.steps


def costs_of(results: Results) -> dict[str, dict[str, float]]:
    """`statistics.costs` of each variant, mean over its finished runs."""
    return {
        variant: {
            name: summarize([costs(run.metrics)[name] for run in runs]).mean
            for name in costs(runs[0].metrics)
        }
        for variant in results.variants
        if (runs := results.finished(variant))
    }


def reached(results: Results, threshold: float) -> dict[str, list[tuple[int, int | None, float | None]]]:
    """When the first metric first reaches the threshold.

    Returns:
        Variant → (seed, step, seconds of all steps so far) of each finished run; None: it never does.
    """
    return {
        variant: [_reached(run, results.settings.metrics[0], threshold) for run in results.finished(variant)]
        for variant in results.variants
    }


def _reached(run: Result, metric: str, threshold: float) -> tuple[int, int | None, float | None]:
    step = first_step_at(curve(run.metrics, metric), threshold)
    return run.seed, step, None if step is None else seconds_until(run.metrics, step)


def _rows(results: Results, metric: str, measure: str) -> list[Row]:
    values = {
        variant: {
            run.seed: MEASURES[measure](points)
            for run in results.finished(variant)
            if _is_whole(points := curve(run.metrics, metric), results)
        }
        for variant in results.variants
    }
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
