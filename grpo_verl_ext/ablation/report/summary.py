"""What a report shows on the terminal, in Markdown and on the page alike, its files, and a tracker's rows.

First a statement for each declared comparison, or that nothing was declared; then the differences, which are
also the rows of the forest plot; then the checks and the costs. `report_of` puts all of it together once; the
terminal, the files, the figures and the page only show it.
"""

from __future__ import annotations

import csv
import io
import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from grpo_verl_ext.ablation.statistics.analysis import Analysis
from grpo_verl_ext.ablation.statistics.measures import CONFIDENCE, Row
from grpo_verl_ext.ablation.statistics.verdicts import Verdict, VerdictOutcome, figures, starts_as_text
from grpo_verl_ext.utils.documents import numbers_as_text
from grpo_verl_ext.utils.files import write_whole

_EXPLORATORY = "exploratory"
_CONTROL = {True: "control shown", False: "control missed"}
NOTHING_DECLARED = "nothing was declared before the runs, so nothing here is a finding"
_MEASURE = "area"
"""Of the first metric: the number that is compared where no primary is declared."""

GREY, PURPLE = "#57606a", "#6b2d73"
OUTCOME_COLOURS = {
    VerdictOutcome.SHOWN: "#00694a",
    VerdictOutcome.OPPOSITE: "#a8201a",
    VerdictOutcome.EQUAL: "#00589b",
    VerdictOutcome.UNDECIDED: "#7a5200",
    VerdictOutcome.BLIND: PURPLE,
    VerdictOutcome.NOT_EXERCISED: PURPLE,
}
"""Background of an outcome's label; white has a contrast of more than 4.5 on each."""

_METRICS = "metrics.parquet"
_CHECK_COLUMNS = ("check", "variant", "value", "result")
_COST_COLUMNS = ("variant", "seconds of steps", "tokens trained on", "peak memory of the actor, GB")

_Line = dict[str, Any]
"""A line of a table, as plain values by column."""


@dataclass(frozen=True)
class Statement:
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
    statements: list[Statement]
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
    settings, wanted = analysis.results.settings, _number(analysis)
    compared = f"{wanted[1].replace('_', ' ')} of {wanted[0]}"
    differences = _differences(analysis, wanted)
    return Report(
        analysis=analysis,
        statements=_statements(analysis),
        differences=differences,
        compared=compared,
        confidence=1 - settings.alpha if analysis.verdicts else CONFIDENCE,
        exploratory=[] if analysis.verdicts else [_exploratory(each, compared) for each in differences],
        tables=_tables(analysis),
        thresholds=_thresholds(analysis),
    )


def _statements(analysis: Analysis) -> list[Statement]:
    verdicts = [
        Statement(verdict.outcome.value, verdict.sentence, OUTCOME_COLOURS[verdict.outcome])
        for verdict in analysis.verdicts
    ]
    controls = [
        Statement(
            _CONTROL[check.passed],
            check.sentence,
            OUTCOME_COLOURS[VerdictOutcome.SHOWN] if check.passed else PURPLE,
        )
        for check in analysis.checks
        if check.is_control
    ]
    return verdicts or controls or [Statement(_EXPLORATORY, NOTHING_DECLARED, GREY)]


def _differences(analysis: Analysis, wanted: tuple[str, str]) -> list[Difference]:
    if analysis.verdicts:
        return [
            Difference(
                f"{each.variant} − {each.against}" + f", {each.measure}" * (each.measure != wanted[1]),
                each.variant,
                each.difference,
                each.low,
                each.high,
                each.by_seed,
            )
            for each in analysis.verdicts
        ]
    rows = {row.variant: row for row in analysis.rows if (row.metric, row.measure) == wanted}
    found, baseline = [], analysis.results.baseline
    for variant, row in rows.items():
        if row.comparison is not None:
            versus, base = row.comparison, rows[baseline].by_seed
            by_seed = {seed: row.by_seed[seed] - base[seed] for seed in row.by_seed if seed in base}
            name = f"{variant} − {baseline}"
            found.append(Difference(name, variant, versus.difference, versus.low, versus.high, by_seed))
    return found


def _number(analysis: Analysis) -> tuple[str, str]:
    """Metric and measure: the primary; without verdicts, only if there are rows of it."""
    settings = analysis.results.settings
    if settings.primary is not None:
        primary = (settings.primary.metric, settings.primary.measure)
        if analysis.verdicts or primary in {(row.metric, row.measure) for row in analysis.rows}:
            return primary
    return settings.metrics[0], _MEASURE


def _exploratory(difference: Difference, compared: str) -> str:
    """``gvpo − grpo, area of acc, 2 starts: +0.021 (−0.008 … 0.050)``."""
    mean = "–" if difference.mean is None else figures(difference.mean, "+")
    ends = (
        "no interval"
        if difference.low is None or difference.high is None
        else f"{figures(difference.low)} … {figures(difference.high)}"
    )
    return f"{difference.name}, {compared}, {starts_as_text(len(difference.by_seed))}: {mean} ({ends})"


def _tables(analysis: Analysis) -> list[TextTable]:
    checks = [
        [
            check.name,
            check.variant,
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


def _thresholds(analysis: Analysis) -> list[str]:
    lines = []
    for variant, runs in analysis.reached.items():
        when = [
            f"seed {seed}: " + ("never" if step is None else f"step {step}, {seconds:.0f} s")
            for seed, step, seconds in runs
        ]
        lines.append(f"{variant} reached {analysis.threshold:g}: {'; '.join(when) or '–'}")
    return lines


def write_files(report: Report, folder: Path) -> list[Path]:
    """Write ``report.json``, ``.csv``, ``.md``, and what was declared: ``verdicts.csv``, ``checks.csv``.

    ``metrics.parquet`` has all that the runs have logged: variant, seed, step, metric, value. Each is written
    whole or not at all.
    """
    analysis = report.analysis
    texts = {"report.csv": _as_csv(_rows(analysis)), "report.md": as_markdown(report)}
    if analysis.verdicts:
        texts["verdicts.csv"] = _as_csv(_verdicts(analysis))
    if analysis.checks:
        texts["checks.csv"] = _as_csv([asdict(check) for check in analysis.checks])
    texts = {"report.json": as_json(report), **texts}
    for name, text in texts.items():
        write_whole(folder / name, text)
    write_whole(folder / _METRICS, analysis.results.table.to_parquet(index=False))
    return [folder / name for name in [*texts, _METRICS]]


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
        "rows": _rows(analysis),
        "costs": analysis.costs,
        "threshold": analysis.threshold,
        "reached": {
            variant: [{"seed": seed, "step": step, "seconds": seconds} for seed, step, seconds in runs]
            for variant, runs in analysis.reached.items()
        },
    }
    return numbers_as_text(content)


def _verdicts(analysis: Analysis) -> list[_Line]:
    return [{**asdict(verdict), "outcome": verdict.outcome.value} for verdict in analysis.verdicts]


def _rows(analysis: Analysis) -> list[_Line]:
    """The rows without nesting but for the values by seed."""
    return [
        {
            "metric": row.metric,
            "measure": row.measure,
            "variant": row.variant,
            **asdict(row.summary),
            **_versus(row),
            "adjusted_p": row.adjusted_p,
            "by_seed": row.by_seed,
        }
        for row in analysis.rows
    ]


def _versus(row: Row) -> _Line:
    versus = {} if row.comparison is None else asdict(row.comparison)
    return {f"versus_{name}": value for name, value in versus.items()}


def _as_csv(lines: list[_Line]) -> str:
    """Columns in the order in which they first appear; instead of ``by_seed``, ``seed_N`` for each seed."""
    flat = [
        {name: value for name, value in line.items() if name != "by_seed"}
        | {f"seed_{seed}": value for seed, value in line.get("by_seed", {}).items()}
        for line in lines
    ]
    columns = list(dict.fromkeys(name for line in flat for name in line))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue()


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
    lines = [f"### {table.title}", "", _line(table.columns), "|" + "---|" * len(table.columns)]
    return "\n".join([*lines, *(_line(cells) for cells in table.lines)])


def _line(cells: tuple[str, ...] | list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def tracked(report: Report) -> tuple[_Line, list[tuple[int, dict[str, float]]]]:
    """Return a report as one run of a tracker such as wandb: its configuration, and its rows.

    The configuration has the grid and the report's sentences. A row has a step, and the mean over the seeds
    of each drawn metric; the last row also has the numbers of each verdict.
    """
    analysis = report.analysis
    settings = analysis.results.settings
    rows: dict[int, dict[str, float]] = defaultdict(dict)
    for metric, bands in analysis.curves.items():
        for band in bands:
            for step, summary in zip(band.steps, band.summaries, strict=True):
                rows[step][f"{metric}/{band.variant}"] = summary.mean
    last = rows[max(rows, default=settings.steps)]
    for verdict in analysis.verdicts:
        last.update(_tracked_verdict(verdict))
    said = [f"{each.label}: {each.sentence}" for each in report.statements] + report.exploratory
    config = {"grid": settings.as_dict(), "report": said}
    finite = {
        step: {name: value for name, value in row.items() if math.isfinite(value)}
        for step, row in rows.items()
    }
    return config, sorted(finite.items())


def _tracked_verdict(verdict: Verdict) -> Iterator[tuple[str, float]]:
    compared = f"{verdict.variant} − {verdict.against}"
    for name in ("difference", "low", "high", "p", "adjusted_p", "starts"):
        value = getattr(verdict, name)
        if value is not None:
            yield f"verdict/{compared}/{verdict.measure}/{name}", float(value)
