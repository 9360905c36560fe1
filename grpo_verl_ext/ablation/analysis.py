"""All that a report shows: numbers, verdicts, and what is missing for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any

from grpo_verl_ext.ablation.grid import GridSettings
from grpo_verl_ext.ablation.measures import (
    Band,
    bands,
    costs_of,
    curves_of,
    reached,
    report_rows,
    steps_of_most,
)
from grpo_verl_ext.ablation.power import finished_starts, seeds_by_rule, starts_by_rule
from grpo_verl_ext.ablation.state import State
from grpo_verl_ext.ablation.table import CheckResult, Results, RunResult
from grpo_verl_ext.ablation.verdicts import Verdict, check_results, control_of, judge
from grpo_verl_ext.runs.provenance import CHANGED


@dataclass(frozen=True)
class Analysis:
    """Everything that a report shows."""

    results: Results
    asked_for: list[RunResult]
    """All runs but those of seeds that the declared rule does not use, unless they have begun."""
    rows: list[dict[str, Any]]
    """The result of `report_rows`."""
    costs: dict[str, dict[str, float]]
    threshold: float | None
    reached: dict[str, list[tuple[int, int | None, float | None]]]
    """The result of `reached`; empty without a threshold."""
    curves: dict[str, list[Band]]
    """Of the primary, then of the grid's ``metrics``: what is drawn."""
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
    costs, primary = costs_of(results), results.settings.primary
    results = replace(results, control=control_of(results))
    checks = check_results(results)
    return Analysis(
        results=results,
        asked_for=_runs_asked_for(results),
        rows=report_rows(results),
        costs=costs,
        threshold=threshold,
        reached={} if threshold is None else reached(results, threshold),
        curves={
            metric: bands(results, metric)
            for metric in dict.fromkeys([*([primary.metric] if primary else []), *results.settings.metrics])
        },
        missing=missing_metrics(results),
        warnings=all_warnings(results),
        verdicts=judge(results, checks, costs),
        checks=checks,
    )


def _runs_asked_for(results: Results) -> list[RunResult]:
    """All runs but those of seeds that the declared rule does not use, unless they have begun."""
    wanted = seeds_by_rule(results)
    return [run for run in results.runs if run.seed in wanted or run.state is not State.WAITING]


def all_warnings(results: Results) -> list[str]:
    """Files that cannot be read; runs that are unfinished, left out, of changed sources, or removed."""
    warnings = list(dict.fromkeys(warning for run in results.runs for warning in run.warnings))
    wanted, declared = starts_by_rule(results), results.settings.is_declared
    unfinished = [run for run in _runs_asked_for(results) if run.state is not State.FINISHED]
    finished = finished_starts(results, wanted)
    beyond = finished_starts(results, len(results.settings.usable)) - finished
    if results.settings.expect and finished < wanted:
        again = ". To finish them, run the same `ablate run` again" * bool(unfinished)
        warnings.append(
            f"{finished} of {wanted} declared starts are finished and compared: the verdicts are not "
            f"final{again}"
        )
    if results.settings.expect and beyond:
        warnings.append(
            f"the declared rule asks for {wanted} starts: {beyond} more are finished and not used"
        )
    if unfinished:
        names = ", ".join(f"{run.name} ({run.state.value})" for run in unfinished)
        warnings.append(f"not finished, and left out: {names}")
    warnings += [
        f"{variant}/seed-{seed} is left out: {why}. To train it again, move its folder away"
        for (variant, seed), why in results.left_out.items()
    ]
    records = [run.record for run in results.compared if run.record is not None]
    if changed := sum(str(record.git_revision).endswith(CHANGED) for record in records):
        rests = "the verdicts rest on them" if declared else "they show no finding"
        warnings.append(
            f"{changed} of {len(records)} runs were begun from a checkout that differs from its commit: what "
            f"ran cannot be known, and {rests}"
        )
    if len(results.beginnings) > 1:
        begun = "; ".join(f"{each.at} at commit {each.commit}" for each in results.beginnings)
        warnings.append(
            f"the grid was begun {len(results.beginnings)} times, and the records of all but the last were "
            f"removed: {begun}. Its declaration was the same ({results.beginnings[0].declaration})"
        )
    return warnings


def missing_metrics(results: Results) -> list[str]:
    """Name the metrics that no finished run has, and the runs whose curve is not whole.

    These are the metrics to compare, the primary, and those of the checks.
    """
    keys = _keys_of_metrics(results.settings) if results.compared else {}
    return [words for metric, key in keys.items() for words in _missing(results, metric, key)]


def _missing(results: Results, metric: str, key: str) -> Iterator[str]:
    curves, last = curves_of(results, metric), results.settings.steps
    names = {(run.variant, run.seed): run.name for run in results.compared}
    absent = [name for run, name in names.items() if run not in curves]
    early = [names[run] for run, curve in curves.items() if curve.index[-1] < last]
    if not curves:
        logged = sorted({*results.table["metric"].unique()} - {metric})
        near = get_close_matches(metric, logged, n=3, cutoff=0.4)
        like = f"; like it are {', '.join(near)}" if near else ""
        fix = "Type: 'metrics=[…]'" if key == "metrics" else "Correct it and type folder=<another>"
        yield f"{key} has {metric}, which no run has logged{like}. {fix}"
    elif early:
        step = min(curve.index[-1] for curve in curves.values())
        yield (
            f"{metric} ends at step {step} of {last} in {', '.join(early)}: left out, "
            f"for it says nothing of the trained policy. Type in base: trainer.test_freq=<steps between "
            f"validations>"
        )
    if curves and absent:
        yield f"{metric} is missing in {', '.join(absent)}: left out"
    usual = steps_of_most(curves)
    for run, curve in curves.items():
        lacking = sorted({*usual} - {*curve.index})
        if lacking and curve.index[-1] >= last:
            steps = ", ".join(map(str, lacking))
            yield f"{metric} lacks the steps {steps} in {names[run]}, which most runs have: left out"


def _keys_of_metrics(settings: GridSettings) -> dict[str, str]:
    """Metric → the key that names it."""
    keys = {settings.primary.metric: "primary"} if settings.primary else {}
    keys |= {check.metric: f"checks[{index}]" for index, check in enumerate(settings.checks)}
    return {metric: keys.get(metric, "metrics") for metric in [*settings.metrics, *keys]}
