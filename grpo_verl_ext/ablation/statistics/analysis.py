"""Compare a grid's variants with its baseline: a row for each metric, measure and variant."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from typing import Any

from grpo_verl_ext.ablation.declaration.grid import GridSettings
from grpo_verl_ext.ablation.running.results import CheckResult, Result, Results
from grpo_verl_ext.ablation.running.state import State
from grpo_verl_ext.ablation.statistics.measures import (
    EXPLORED,
    Comparison,
    Summary,
    adjusted,
    compare,
    costs_of,
    reached,
    summarize,
    values_of,
)
from grpo_verl_ext.ablation.statistics.power import finished_starts, starts_by_rule
from grpo_verl_ext.ablation.statistics.verdicts import Verdict, judge, with_control
from grpo_verl_ext.runs.provenance import CHANGED


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
    results = with_control(results)
    rows = rows_of(results)
    verdicts, checks = judge(results)
    return Analysis(
        results=results,
        rows=rows,
        costs=costs_of(results),
        threshold=threshold,
        reached={} if threshold is None else reached(results, threshold),
        missing=missing_metrics(results),
        warnings=all_warnings(results),
        verdicts=verdicts,
        checks=checks,
    )


def rows_of(results: Results) -> list[Row]:
    """All rows, metric by metric, without variants that have no finished run with the metric."""
    primary = results.settings.primary
    numbers = [(metric, measure) for metric in results.settings.metrics for measure in EXPLORED]
    if primary is not None:
        numbers = list(dict.fromkeys([(primary.metric, primary.measure), *numbers]))
    return [row for metric, measure in numbers for row in _rows(results, metric, measure)]


def all_warnings(results: Results) -> list[str]:
    """Files that cannot be read, runs that are not finished, and runs of changed sources."""
    warnings = list(dict.fromkeys(warning for run in results.runs for warning in run.warnings))
    wanted = starts_by_rule(results)
    if results.settings.expect and (finished := finished_starts(results, wanted)) < wanted:
        warnings.append(
            f"{finished} of {wanted} declared starts are finished: the verdicts are not final. To finish "
            f"them, run the same `ablate run` again"
        )
    unfinished = [run for run in runs_asked_for(results) if run.state is not State.FINISHED]
    if unfinished:
        names = ", ".join(f"{run.name} ({run.state.value})" for run in unfinished)
        warnings.append(f"not finished, and left out: {names}")
    return warnings + _of_changed_sources(results)


def _of_changed_sources(results: Results) -> list[str]:
    records = [run.record for run in results.runs if run.record is not None]
    changed = sum(str(record.git_revision).endswith(CHANGED) for record in records)
    if not changed:
        return []
    rests = "the verdicts rest on them" if results.settings.is_declared else "they show no finding"
    return [
        f"{changed} of {len(records)} runs were begun from a checkout that differs from its commit: what ran "
        f"cannot be known, and {rests}"
    ]


def runs_asked_for(results: Results) -> list[Result]:
    """All runs but those of seeds that the declared rule does not use, unless they have begun."""
    wanted = results.settings.seeds[: starts_by_rule(results)]
    return [run for run in results.runs if run.seed in wanted or run.state is not State.WAITING]


def missing_metrics(results: Results) -> list[str]:
    """Name the metrics that no finished run has, and the runs whose curve ends before their last step.

    These are the metrics to compare, the primary, and those of the checks.
    """
    finished = [run for run in results.runs if run.state is State.FINISHED]
    found = []
    for metric, key in _keys_of_metrics(results.settings).items() if finished else ():
        curves = results.curves(metric)
        ends = {
            run.name: curves[run.variant, run.seed][-1][0]
            for run in finished
            if (run.variant, run.seed) in curves
        }
        early = [name for name, step in ends.items() if step < results.settings.steps]
        if not ends:
            logged = sorted({*results.table["metric"].unique()} - {metric})
            near = get_close_matches(metric, logged, n=3, cutoff=0.4)
            like = f"; like it are {', '.join(near)}" if near else ""
            fix = "Type: 'metrics=[…]'" if key == "metrics" else "Correct it and type folder=<another>"
            found.append(f"{key} has {metric}, which no run has logged{like}. {fix}")
        elif early:
            step = min(ends.values())
            found.append(
                f"{metric} ends at step {step} of {results.settings.steps} in {', '.join(early)}: left out, "
                f"for it says nothing of the trained policy. Type in base: trainer.test_freq=<steps between "
                f"validations>"
            )
        if ends and (absent := [run.name for run in finished if run.name not in ends]):
            found.append(f"{metric} is missing in {', '.join(absent)}: left out")
    return found


def _keys_of_metrics(settings: GridSettings) -> dict[str, str]:
    """Metric → the key that names it."""
    keys = {settings.primary.metric: "primary"} if settings.primary else {}
    keys |= {check.metric: f"checks[{index}]" for index, check in enumerate(settings.checks)}
    return {metric: keys.get(metric, "metrics") for metric in [*settings.metrics, *keys]}


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
