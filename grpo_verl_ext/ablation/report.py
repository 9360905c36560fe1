"""What a report shows on the terminal, in Markdown and on the page alike, its files, and a tracker's rows.

First a statement for each declared comparison, or that nothing was declared; then the differences, which are
also the rows of the forest plot; then the checks and the costs.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

from grpo_verl_ext.ablation.declaration import Primary
from grpo_verl_ext.ablation.measures import (
    Band,
    bands,
    costs_of,
    curves_of,
    report_rows,
    steps_of_most,
)
from grpo_verl_ext.ablation.power import finished_starts, seeds_by_rule
from grpo_verl_ext.ablation.state import State
from grpo_verl_ext.ablation.table import TABLE, CheckResult, Results, RunResult, write_table
from grpo_verl_ext.ablation.verdicts import (
    Verdict,
    check_results,
    control_of,
    figures,
    judge,
)
from grpo_verl_ext.runs.provenance import CHANGED
from grpo_verl_ext.utils.documents import numbers_as_text
from grpo_verl_ext.utils.files import write_whole


@dataclass(frozen=True)
class Difference:
    """One variant minus another, paired by seed."""

    name: str
    """As in a verdict's sentence: ``gvpo − grpo``."""
    variant: str
    mean: float | None
    """None: no common seed yet."""
    low: float | None
    high: float | None
    by_seed: dict[int, float]


@dataclass(frozen=True)
class Report:
    """Everything that a report shows."""

    results: Results
    rows: list[dict[str, Any]]
    """The result of `report_rows`."""
    costs: dict[str, dict[str, float]]
    missing: list[str]
    """Metrics that no run has, or that end before the last step; a report begins with them."""
    warnings: list[str]
    verdicts: list[Verdict] = field(default_factory=list)
    """One for each declared comparison; empty without a declaration."""
    checks: list[CheckResult] = field(default_factory=list)
    """The positive control and the manipulation checks; empty without a declaration."""

    @property
    def statements(self) -> list[tuple[str, str]]:
        """Label and sentence of each verdict, else of the control, else that nothing was declared."""
        verdicts = [(each.outcome.value, each.sentence) for each in self.verdicts]
        controls = [
            ("control shown" if each.passed else "control missed", each.sentence)
            for each in self.checks
            if each.is_control
        ]
        nothing = "nothing was declared before the runs, so nothing here is a finding"
        return verdicts or controls or [("exploratory", nothing)]

    @property
    def asked_for(self) -> list[RunResult]:
        """All runs but those of seeds that the declared rule does not use, unless they have begun."""
        return _runs_asked_for(self.results)

    @property
    def compared(self) -> Primary:
        """The number whose differences are shown: the primary, else the area of the first metric."""
        primary = self.results.settings.primary
        measured = {(row["metric"], row["measure"]) for row in self.rows}
        if primary is None or not (self.verdicts or (primary.metric, primary.measure) in measured):
            return Primary(self.results.settings.metrics[0], "area")
        return primary

    @property
    def differences(self) -> list[Difference]:
        """Those that the verdicts are about; without verdicts, those from the baseline."""
        metric, measure = self.compared.metric, self.compared.measure
        if self.verdicts:
            return [
                Difference(
                    f"{each.variant} − {each.against}" + f", {each.measure}" * (each.measure != measure),
                    *(each.variant, each.difference, each.low, each.high, each.by_seed),
                )
                for each in self.verdicts
            ]
        rows = {r["variant"]: r for r in self.rows if (r["metric"], r["measure"]) == (metric, measure)}
        found, baseline = [], self.results.settings.base_variant
        for variant, row in rows.items():
            if "versus_difference" in row:
                own, base = row["by_seed"], rows[baseline]["by_seed"]
                by_seed = {seed: own[seed] - base[seed] for seed in own if seed in base}
                mean, low, high = (row[f"versus_{name}"] for name in ("difference", "low", "high"))
                found.append(Difference(f"{variant} − {baseline}", variant, mean, low, high, by_seed))
        return found

    @property
    def exploratory(self) -> list[str]:
        """``gvpo − grpo, area of acc, 2 starts: +0.021 (−0.008 … 0.050)``, where no verdict says it."""
        lines = []
        for each in [] if self.verdicts else self.differences:
            mean = "–" if each.mean is None else figures(each.mean, "+")
            ends = "no interval"
            if each.low is not None and each.high is not None:
                ends = f"{figures(each.low)} … {figures(each.high)}"
            starts = f"{len(each.by_seed)} start{'s' * (len(each.by_seed) != 1)}"
            lines.append(f"{each.name}, {self.compared}, {starts}: {mean} ({ends})")
        return lines

    @property
    def tables(self) -> list[tuple[str, tuple[str, ...], list[list[str]]]]:
        """Title, columns and lines of the checks, where some were declared, and of the costs."""
        checks = [
            [
                *(check.name, check.variant),
                "–" if check.value is None else f"{check.value:.3g}".replace("-", "−"),
                "passed" if check.passed else "missed",
            ]
            for check in self.checks
        ]
        costs = [
            [variant, f"{of['seconds']:.0f}", f"{of['tokens']:.0f}", f"{of['memory_gb']:.2f}"]
            for variant, of in self.costs.items()
        ]
        of_checks = ("check", "variant", "value", "result")
        of_costs = ("variant", "seconds of steps", "tokens trained on", "peak memory of the actor, GB")
        found = [
            ("checks", of_checks, checks),
            ("what a run took, mean over seeds", of_costs, costs),
        ]
        return [each for each in found if each[2]]

    @cached_property
    def curves(self) -> dict[str, list[Band]]:
        """Of the primary, then of the grid's ``metrics``: what is drawn."""
        settings = self.results.settings
        primary = [settings.primary.metric] if settings.primary else []
        return {metric: bands(self.results, metric) for metric in [*primary, *settings.metrics]}


def report_of(results: Results) -> Report:
    """Compare the finished runs, and put together what is shown of them."""
    control = results.control or control_of(results.settings)
    results, costs = replace(results, control=control), costs_of(results)
    checks = check_results(results)
    return Report(
        results=results,
        rows=report_rows(results),
        costs=costs,
        missing=_missing_metrics(results),
        warnings=_warnings(results),
        verdicts=judge(results, checks, costs),
        checks=checks,
    )


def _runs_asked_for(results: Results) -> list[RunResult]:
    wanted = seeds_by_rule(results)
    return [run for run in results.runs if run.seed in wanted or run.state is not State.WAITING]


def _warnings(results: Results) -> list[str]:
    """Files that cannot be read; runs that are unfinished, left out, of changed sources, or removed."""
    warnings = list(dict.fromkeys(warning for run in results.runs for warning in run.warnings))
    wanted, settings = seeds_by_rule(results), results.settings
    unfinished = [run for run in _runs_asked_for(results) if run.state is not State.FINISHED]
    finished = finished_starts(results, wanted)
    beyond = finished_starts(results, settings.usable) - finished
    if settings.expect and finished < len(wanted):
        again = ". To finish them, run the same `ablate run` again" * bool(unfinished)
        warnings.append(
            f"{finished} of {len(wanted)} declared starts are finished and compared: the verdicts are not "
            f"final{again}"
        )
    if settings.expect and beyond:
        warnings.append(
            f"the declared rule asks for {len(wanted)} starts: {beyond} more are finished and not used"
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
        rests = "the verdicts rest on them" if settings.is_declared else "they show no finding"
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


def _missing_metrics(results: Results) -> list[str]:
    """Name the metrics that no finished run has, and the runs whose curve is not whole.

    These are the metrics to compare, the primary, and those of the checks.
    """
    settings = results.settings
    keys = {settings.primary.metric: "primary"} if settings.primary else {}
    keys |= {check.metric: f"checks[{index}]" for index, check in enumerate(settings.checks)}
    asked = dict.fromkeys([*settings.metrics, *keys] if results.compared else [])
    return [words for metric in asked for words in _missing(results, metric, keys.get(metric, "metrics"))]


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


def write_files(report: Report, folder: Path) -> list[Path]:
    """Write ``report.json``, ``report.md`` and ``metrics.parquet``, each whole or not at all.

    ``metrics.parquet`` has all that the report was made from: see `write_table`.
    """
    texts = {"report.json": _as_json(report), "report.md": _as_markdown(report)}
    for name, text in texts.items():
        write_whole(folder / name, text)
    return [*(folder / name for name in texts), write_table(report.results, folder / TABLE)]


def _as_json(report: Report) -> str:
    """Everything, with the values by seed; the statements first."""
    content = {
        "statements": [{"label": label, "sentence": sentence} for label, sentence in report.statements],
        "verdicts": [{**asdict(verdict), "outcome": verdict.outcome.value} for verdict in report.verdicts],
        "checks": [asdict(check) for check in report.checks],
        "missing": report.missing,
        "warnings": report.warnings,
        "settings": report.results.settings.as_dict(),
        "beginnings": [
            {"declaration": each.declaration, "commit": each.commit, "at": each.at}
            for each in report.results.beginnings
        ],
        "rows": report.rows,
        "costs": report.costs,
    }
    return numbers_as_text(content)


def _as_markdown(report: Report) -> str:
    """What is missing, the statements, the differences of an exploratory grid, tables, warnings."""
    said = [f"**{label}**: {sentence}" for label, sentence in report.statements]
    parts = ["\n".join(f"- {line}" for line in lines) for lines in (report.missing, said, report.exploratory)]
    for title, columns, lines in report.tables:
        head, *rows = (
            "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
            for cells in (columns, *lines)
        )
        parts.append("\n".join([f"### {title}", "", head, "|" + "---|" * len(columns), *rows]))
    parts.append("\n".join(f"- {line}" for line in report.warnings))
    return "\n\n".join(part for part in parts if part) + "\n"


_TRACKED = ("difference", "low", "high", "p", "adjusted_p", "starts")


def tracked(report: Report) -> tuple[dict[str, Any], list[tuple[int, dict[str, float]]]]:
    """Return a report as one run of a tracker such as wandb: its configuration, and its rows.

    The configuration has the grid and the report's sentences. A row has a step, and the mean over the seeds
    of each drawn metric; the last row also has the numbers of each verdict.
    """
    settings = report.results.settings
    rows: dict[int, dict[str, float]] = defaultdict(dict)
    for metric, drawn in report.curves.items():
        for band in drawn:
            for step, mean in zip(band.steps, band.mean.tolist(), strict=True):
                if math.isfinite(mean):
                    rows[step][f"{metric}/{band.variant}"] = mean
    last = rows[max(rows, default=settings.steps)]
    for verdict in report.verdicts:
        begins = f"verdict/{verdict.variant} − {verdict.against}/{verdict.measure}"
        numbers = {name: getattr(verdict, name) for name in _TRACKED}
        last |= {f"{begins}/{name}": float(value) for name, value in numbers.items() if value is not None}
    said = [f"{label}: {sentence}" for label, sentence in report.statements] + report.exploratory
    return {"grid": settings.as_dict(), "report": said}, sorted(rows.items())
