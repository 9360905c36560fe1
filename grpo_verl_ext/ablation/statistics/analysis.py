"""Compare a grid's variants: rows against the baseline, verdicts, and what is missing for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from difflib import get_close_matches

from grpo_verl_ext.ablation.declaration.grid import GridSettings
from grpo_verl_ext.ablation.running.results import CheckResult, Results, RunResult
from grpo_verl_ext.ablation.running.state import State
from grpo_verl_ext.ablation.statistics.measures import (
    Band,
    Curves,
    Row,
    bands,
    costs_of,
    curves_of,
    reached,
    report_rows,
    steps_of_most,
)
from grpo_verl_ext.ablation.statistics.pairs import (
    declared_pairs,
    finished_starts,
    runs_asked_for,
    starts_by_rule,
)
from grpo_verl_ext.ablation.statistics.verdicts import Verdict, check_results, control_of, judge
from grpo_verl_ext.runs.provenance import CHANGED


@dataclass(frozen=True)
class Analysis:
    """Everything that a report shows."""

    results: Results
    asked_for: list[RunResult]
    """All runs but those of seeds that the declared rule does not use, unless they have begun."""
    rows: list[Row]
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
    rows, costs = report_rows(results), costs_of(results)
    when = {} if threshold is None else reached(results, threshold)
    primary = results.settings.primary
    shown = dict.fromkeys([*([primary.metric] if primary else []), *results.settings.metrics])
    curves = {metric: bands(results, metric) for metric in shown}
    missing, warnings = missing_metrics(results), all_warnings(results)
    asked_for = runs_asked_for(results)
    pairs = declared_pairs(results)
    results = replace(results, control=control_of(results))
    checks = check_results(results)
    verdicts = judge(results.declared, pairs, checks, costs)
    return Analysis(
        results=results,
        asked_for=asked_for,
        rows=rows,
        costs=costs,
        threshold=threshold,
        reached=when,
        curves=curves,
        missing=missing,
        warnings=warnings,
        verdicts=verdicts,
        checks=checks,
    )


def all_warnings(results: Results) -> list[str]:
    """Files that cannot be read; runs that are unfinished, left out, of changed sources, or removed."""
    warnings = list(dict.fromkeys(warning for run in results.runs for warning in run.warnings))
    wanted = starts_by_rule(results)
    unfinished = [run for run in runs_asked_for(results) if run.state is not State.FINISHED]
    if results.settings.expect and (finished := finished_starts(results, wanted)) < wanted:
        again = ". To finish them, run the same `ablate run` again" * bool(unfinished)
        warnings.append(
            f"{finished} of {wanted} declared starts are finished and compared: the verdicts are not "
            f"final{again}"
        )
    beyond = finished_starts(results, len(results.declared.usable)) - finished_starts(results, wanted)
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
    return warnings + _of_changed_sources(results) + _begun_anew(results)


def _of_changed_sources(results: Results) -> list[str]:
    records = [run.record for run in results.compared if run.record is not None]
    changed = sum(str(record.git_revision).endswith(CHANGED) for record in records)
    if not changed:
        return []
    rests = "the verdicts rest on them" if results.settings.is_declared else "they show no finding"
    return [
        f"{changed} of {len(records)} runs were begun from a checkout that differs from its commit: what ran "
        f"cannot be known, and {rests}"
    ]


def _begun_anew(results: Results) -> list[str]:
    begun = [f"{each.at} at commit {each.commit}" for each in results.beginnings]
    if len(begun) < 2:
        return []
    return [
        f"the grid was begun {len(begun)} times, and the records of all but the last were removed: "
        f"{'; '.join(begun)}. Its declaration was the same ({results.beginnings[0].declaration})"
    ]


def missing_metrics(results: Results) -> list[str]:
    """Name the metrics that no finished run has, and the runs whose curve is not whole.

    These are the metrics to compare, the primary, and those of the checks.
    """
    finished = results.compared
    found = []
    for metric, key in _keys_of_metrics(results.settings).items() if finished else ():
        curves = curves_of(results, metric)
        ends = {run: points[-1][0] for run, points in curves.items()}
        absent = [run.name for run in finished if (run.variant, run.seed) not in ends]
        last = results.settings.steps
        early = [run.name for run in finished if ends.get((run.variant, run.seed), last) < last]
        if not ends:
            logged = sorted({*results.table["metric"].unique()} - {metric})
            near = get_close_matches(metric, logged, n=3, cutoff=0.4)
            like = f"; like it are {', '.join(near)}" if near else ""
            fix = "Type: 'metrics=[…]'" if key == "metrics" else "Correct it and type folder=<another>"
            found.append(f"{key} has {metric}, which no run has logged{like}. {fix}")
        elif early:
            step = min(ends.values())
            found.append(
                f"{metric} ends at step {step} of {last} in {', '.join(early)}: left out, "
                f"for it says nothing of the trained policy. Type in base: trainer.test_freq=<steps between "
                f"validations>"
            )
        if ends and absent:
            found.append(f"{metric} is missing in {', '.join(absent)}: left out")
        found += _with_gaps(metric, curves, last)
    return found


def _with_gaps(metric: str, curves: Curves, last: int) -> Iterator[str]:
    usual = steps_of_most(curves)
    for (variant, seed), points in curves.items():
        lacking = sorted({*usual} - {step for step, _ in points})
        if lacking and points[-1][0] >= last:
            steps = ", ".join(map(str, lacking))
            yield f"{metric} lacks the steps {steps} in {variant}/seed-{seed}, which most runs have: left out"


def _keys_of_metrics(settings: GridSettings) -> dict[str, str]:
    """Metric → the key that names it."""
    keys = {settings.primary.metric: "primary"} if settings.primary else {}
    keys |= {check.metric: f"checks[{index}]" for index, check in enumerate(settings.checks)}
    return {metric: keys.get(metric, "metrics") for metric in [*settings.metrics, *keys]}
