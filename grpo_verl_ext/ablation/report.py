"""What a report shows on the terminal, in Markdown and on the page alike, its files, and a tracker's rows.

First a statement for each declared comparison, or that nothing was declared; then the differences, which are
also the rows of the forest plot; then the checks and the costs. `report_of` puts all of it together once; the
terminal, the files, the figures and the page only show it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from grpo_verl_ext.ablation.analysis import Analysis
from grpo_verl_ext.ablation.declaration import Primary
from grpo_verl_ext.ablation.measures import CONFIDENCE
from grpo_verl_ext.ablation.table import TABLE, write_table
from grpo_verl_ext.ablation.verdicts import VerdictOutcome, figures
from grpo_verl_ext.utils.documents import numbers_as_text
from grpo_verl_ext.utils.files import write_whole

_NOTHING_DECLARED = "nothing was declared before the runs, so nothing here is a finding"
GREY, _PURPLE = "#57606a", "#6b2d73"
OUTCOME_COLOURS = {
    VerdictOutcome.SHOWN: "#00694a",
    VerdictOutcome.OPPOSITE: "#a8201a",
    VerdictOutcome.EQUAL: "#00589b",
    VerdictOutcome.UNDECIDED: "#7a5200",
    VerdictOutcome.BLIND: _PURPLE,
    VerdictOutcome.NOT_EXERCISED: _PURPLE,
}
"""Background of an outcome's label; white has a contrast of more than 4.5 on each."""
_CHECK_COLUMNS = ("check", "variant", "value", "result")
_COST_COLUMNS = ("variant", "seconds of steps", "tokens trained on", "peak memory of the actor, GB")


@dataclass(frozen=True)
class _Statement:
    """A sentence, and the label that is set off before it."""

    label: str
    sentence: str
    colour: str


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
class TextTable:
    """A table of text: title, names of columns, lines of cells."""

    title: str
    columns: tuple[str, ...]
    lines: list[list[str]]


@dataclass(frozen=True)
class Report:
    """An analysis in the words and the numbers that are shown."""

    analysis: Analysis
    statements: list[_Statement]
    """One for each verdict; without verdicts, the positive control, or that nothing was declared."""
    differences: list[Difference]
    """Those that the verdicts are about; without verdicts, those from the baseline."""
    compared: str
    """The number whose differences are shown: ``area of acc``."""
    confidence: float
    """Level of the intervals of the differences."""
    exploratory: list[str]
    """A line for each difference, where no verdict's sentence has it."""
    tables: list[TextTable]
    """The checks, where some were declared, and the costs."""
    thresholds: list[str]
    """One line per variant: when each run's first metric reached the threshold."""


def report_of(analysis: Analysis) -> Report:
    """Put together what is shown of an analysis."""
    settings, verdicts = analysis.results.settings, analysis.verdicts
    rows = {(row["metric"], row["measure"]) for row in analysis.rows}
    compared = settings.primary
    if compared is None or not (verdicts or (compared.metric, compared.measure) in rows):
        compared = Primary(settings.metrics[0], "area")
    differences = _differences(analysis, compared)
    thresholds = [
        f"{variant} reached {analysis.threshold:g}: "
        + ("; ".join(
            f"seed {seed}: " + ("never" if step is None else f"step {step}, {seconds:.0f} s")
            for seed, step, seconds in runs
        ) or "–")
        for variant, runs in analysis.reached.items()
    ]  # fmt: skip
    return Report(
        analysis=analysis,
        statements=_statements(analysis),
        differences=differences,
        compared=str(compared),
        confidence=1 - settings.alpha if verdicts else CONFIDENCE,
        exploratory=[] if verdicts else [_exploratory(each, str(compared)) for each in differences],
        tables=_tables(analysis),
        thresholds=thresholds,
    )


def _statements(analysis: Analysis) -> list[_Statement]:
    verdicts = [
        _Statement(verdict.outcome.value, verdict.sentence, OUTCOME_COLOURS[verdict.outcome])
        for verdict in analysis.verdicts
    ]
    controls = [
        _Statement("control shown", check.sentence, OUTCOME_COLOURS[VerdictOutcome.SHOWN])
        if check.passed
        else _Statement("control missed", check.sentence, _PURPLE)
        for check in analysis.checks
        if check.is_control
    ]
    return verdicts or controls or [_Statement("exploratory", _NOTHING_DECLARED, GREY)]


def _differences(analysis: Analysis, compared: Primary) -> list[Difference]:
    found = [
        Difference(
            f"{each.variant} − {each.against}" + f", {each.measure}" * (each.measure != compared.measure),
            *(each.variant, each.difference, each.low, each.high, each.by_seed),
        )
        for each in analysis.verdicts
    ]
    wanted, baseline = (compared.metric, compared.measure), analysis.results.settings.base_variant
    rows = {row["variant"]: row for row in analysis.rows if (row["metric"], row["measure"]) == wanted}
    for variant, row in rows.items():
        if not analysis.verdicts and "versus_difference" in row:
            own, base = row["by_seed"], rows[baseline]["by_seed"]
            by_seed = {seed: own[seed] - base[seed] for seed in own if seed in base}
            mean, low, high = (row[f"versus_{name}"] for name in ("difference", "low", "high"))
            found.append(Difference(f"{variant} − {baseline}", variant, mean, low, high, by_seed))
    return found


def _exploratory(difference: Difference, compared: str) -> str:
    """``gvpo − grpo, area of acc, 2 starts: +0.021 (−0.008 … 0.050)``."""
    mean = "–" if difference.mean is None else figures(difference.mean, "+")
    ends = (
        "no interval"
        if difference.low is None or difference.high is None
        else f"{figures(difference.low)} … {figures(difference.high)}"
    )
    starts = len(difference.by_seed)
    return f"{difference.name}, {compared}, {starts} start{'s' * (starts != 1)}: {mean} ({ends})"


def _tables(analysis: Analysis) -> list[TextTable]:
    checks = [
        [
            *(check.name, check.variant),
            "–" if check.value is None else f"{check.value:.3g}".replace("-", "−"),
            "passed" if check.passed else "missed",
        ]
        for check in analysis.checks
    ]
    costs = [
        [variant, f"{of['seconds']:.0f}", f"{of['tokens']:.0f}", f"{of['memory_gb']:.2f}"]
        for variant, of in analysis.costs.items()
    ]
    found = [
        TextTable("checks", _CHECK_COLUMNS, checks),
        TextTable("what a run took, mean over seeds", _COST_COLUMNS, costs),
    ]
    return [table for table in found if table.lines]


def write_files(report: Report, folder: Path) -> list[Path]:
    """Write ``report.json``, ``.csv``, ``.md``, and what was declared: ``verdicts.csv``, ``checks.csv``.

    ``metrics.parquet`` has all that the report was made from: see `write_table`. Each is written whole or not
    at all.
    """
    verdicts, checks = _verdicts(report.analysis), [asdict(check) for check in report.analysis.checks]
    texts = {"report.json": as_json(report), "report.csv": _as_csv(report.analysis.rows)}
    texts |= {"report.md": as_markdown(report)}
    texts |= {"verdicts.csv": _as_csv(verdicts)} if verdicts else {}
    texts |= {"checks.csv": _as_csv(checks)} if checks else {}
    for name, text in texts.items():
        write_whole(folder / name, text)
    return [*(folder / name for name in texts), write_table(report.analysis.results, folder / TABLE)]


def as_json(report: Report) -> str:
    """Everything, with the values by seed; the statements first."""
    analysis = report.analysis
    content = {
        "statements": [{"label": each.label, "sentence": each.sentence} for each in report.statements],
        "verdicts": _verdicts(analysis),
        "checks": [asdict(check) for check in analysis.checks],
        "missing": analysis.missing,
        "warnings": analysis.warnings,
        "settings": analysis.results.settings.as_dict(),
        "beginnings": [
            {"declaration": each.declaration, "commit": each.commit, "at": each.at}
            for each in analysis.results.beginnings
        ],
        "rows": analysis.rows,
        "costs": analysis.costs,
        "threshold": analysis.threshold,
        "reached": {
            variant: [{"seed": seed, "step": step, "seconds": seconds} for seed, step, seconds in runs]
            for variant, runs in analysis.reached.items()
        },
    }
    return numbers_as_text(content)


def _verdicts(analysis: Analysis) -> list[dict[str, Any]]:
    return [{**asdict(verdict), "outcome": verdict.outcome.value} for verdict in analysis.verdicts]


def _as_csv(lines: list[dict[str, Any]]) -> str:
    """Columns in the order in which they first appear; instead of ``by_seed``, ``seed_N`` for each seed."""
    flat = [
        {name: value for name, value in line.items() if name != "by_seed"}
        | {f"seed_{seed}": value for seed, value in line.get("by_seed", {}).items()}
        for line in lines
    ]
    return str(pd.DataFrame(flat, dtype=object).to_csv(index=False))


def as_markdown(report: Report) -> str:
    """What is missing, the statements, the differences of an exploratory grid, tables, warnings."""
    said = [f"**{each.label}**: {each.sentence}" for each in report.statements]
    parts = [
        *map(_list, (report.analysis.missing, said, report.exploratory)),
        *map(_table, report.tables),
        _list([*report.thresholds, *report.analysis.warnings]),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _list(lines: list[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _table(table: TextTable) -> str:
    rows = [
        "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
        for cells in (table.columns, *table.lines)
    ]
    return "\n".join([f"### {table.title}", "", rows[0], "|" + "---|" * len(table.columns), *rows[1:]])


_TRACKED = ("difference", "low", "high", "p", "adjusted_p", "starts")


def tracked(report: Report) -> tuple[dict[str, Any], list[tuple[int, dict[str, float]]]]:
    """Return a report as one run of a tracker such as wandb: its configuration, and its rows.

    The configuration has the grid and the report's sentences. A row has a step, and the mean over the seeds
    of each drawn metric; the last row also has the numbers of each verdict.
    """
    settings = report.analysis.results.settings
    rows: dict[int, dict[str, float]] = defaultdict(dict)
    for metric, drawn in report.analysis.curves.items():
        for band in drawn:
            for step, mean in zip(band.steps, band.mean.tolist(), strict=True):
                if math.isfinite(mean):
                    rows[step][f"{metric}/{band.variant}"] = mean
    last = rows[max(rows, default=settings.steps)]
    for verdict in report.analysis.verdicts:
        begins = f"verdict/{verdict.variant} − {verdict.against}/{verdict.measure}"
        numbers = {name: getattr(verdict, name) for name in _TRACKED}
        last |= {f"{begins}/{name}": float(value) for name, value in numbers.items() if value is not None}
    said = [f"{each.label}: {each.sentence}" for each in report.statements] + report.exploratory
    return {"grid": settings.as_dict(), "report": said}, sorted(rows.items())
