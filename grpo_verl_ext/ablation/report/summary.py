"""What a report shows on the terminal, in Markdown and on the page alike, and its JSON, CSV and Markdown.

First a statement for each declared comparison, or that nothing was declared; then the differences, which are
also the rows of the forest plot; then the checks and the costs.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from grpo_verl_ext.ablation.statistics.analysis import Analysis
from grpo_verl_ext.ablation.statistics.measures import CONFIDENCE
from grpo_verl_ext.ablation.statistics.pairs import figures, starts_as_text
from grpo_verl_ext.ablation.statistics.verdicts import Outcome
from grpo_verl_ext.utils.documents import numbers_as_text
from grpo_verl_ext.utils.files import write_whole

EXPLORATORY = "exploratory"
CONTROL = {True: "control shown", False: "control missed"}
NOTHING_DECLARED = "nothing was declared before the runs, so nothing here is a finding"
_MEASURE = "area"
"""Of the first metric: the number that is compared where no primary is declared."""

GREY, PURPLE = "#57606a", "#6b2d73"
COLOURS = {
    Outcome.SHOWN: "#00694a",
    Outcome.OPPOSITE: "#a8201a",
    Outcome.EQUAL: "#00589b",
    Outcome.UNDECIDED: "#7a5200",
    Outcome.BLIND: PURPLE,
    Outcome.NOT_EXERCISED: PURPLE,
}
"""Background of an outcome's label; white has a contrast of more than 4.5 on each."""

_CHECK_COLUMNS = ("check", "variant", "value", "result")
_COST_COLUMNS = ("variant", "seconds of steps", "tokens trained on", "peak memory of the actor, GB")


@dataclass(frozen=True)
class Statement:
    """A sentence, and the label that is set off before it."""

    label: str
    sentence: str
    colour: str


@dataclass(frozen=True)
class Difference:
    """One variant minus another, paired by seed."""

    variant: str
    against: str
    mean: float | None
    """None: no common seed yet."""
    low: float | None
    high: float | None
    by_seed: dict[int, float]

    @property
    def name(self) -> str:
        """As in a verdict's sentence."""
        return f"{self.variant} − {self.against}"


@dataclass(frozen=True)
class TextTable:
    """A table of text: title, names of columns, lines of cells."""

    title: str
    columns: tuple[str, ...]
    lines: list[list[str]]


def statements(analysis: Analysis) -> list[Statement]:
    """One for each verdict; without verdicts, the positive control, or that nothing was declared."""
    verdicts = [
        Statement(verdict.outcome.value, verdict.sentence, COLOURS[verdict.outcome])
        for verdict in analysis.verdicts
    ]
    controls = [
        Statement(CONTROL[check.passed], check.sentence, COLOURS[Outcome.SHOWN] if check.passed else PURPLE)
        for check in analysis.checks
        if check.is_control
    ]
    return verdicts or controls or [Statement(EXPLORATORY, NOTHING_DECLARED, GREY)]


def differences(analysis: Analysis) -> list[Difference]:
    """Those that the verdicts are about; without verdicts, those from the baseline."""
    if analysis.verdicts:
        return [
            Difference(each.variant, each.against, each.difference, each.low, each.high, each.by_seed)
            for each in analysis.verdicts
        ]
    wanted = _number(analysis)
    rows = {row.variant: row for row in analysis.rows if (row.metric, row.measure) == wanted}
    found = []
    for variant, row in rows.items():
        if row.comparison is not None:
            versus, base = row.comparison, rows[analysis.results.baseline].by_seed
            by_seed = {seed: row.by_seed[seed] - base[seed] for seed in row.by_seed if seed in base}
            against = analysis.results.baseline
            found.append(Difference(variant, against, versus.difference, versus.low, versus.high, by_seed))
    return found


def compared(analysis: Analysis) -> str:
    """The number whose differences are shown: ``area of acc``."""
    metric, measure = _number(analysis)
    return f"{measure.replace('_', ' ')} of {metric}"


def _number(analysis: Analysis) -> tuple[str, str]:
    """Metric and measure: the primary; without verdicts, only if there are rows of it."""
    settings = analysis.results.settings
    if settings.primary is not None:
        primary = (settings.primary.metric, settings.primary.measure)
        if analysis.verdicts or primary in {(row.metric, row.measure) for row in analysis.rows}:
            return primary
    return settings.metrics[0], _MEASURE


def confidence(analysis: Analysis) -> float:
    """Level of the intervals of `differences`."""
    return 1 - analysis.results.settings.alpha if analysis.verdicts else CONFIDENCE


def exploratory_lines(analysis: Analysis) -> list[str]:
    """One for each difference, where no verdict's sentence has it."""
    if analysis.verdicts:
        return []
    of = compared(analysis)
    return [
        f"{each.name}, {of}, {starts_as_text(len(each.by_seed))}: {_with_interval(each)}"
        for each in differences(analysis)
    ]


def metrics_shown(analysis: Analysis) -> list[str]:
    """Metrics whose curves are drawn: the primary, then the grid's ``metrics``."""
    settings = analysis.results.settings
    first = [settings.primary.metric] if settings.primary is not None else []
    return list(dict.fromkeys([*first, *settings.metrics]))


def tables(analysis: Analysis) -> list[TextTable]:
    """The checks, where some were declared, and the costs."""
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


def thresholds(analysis: Analysis) -> list[str]:
    """One line per variant: when each run's first metric reached the threshold."""
    lines = []
    for variant, runs in analysis.reached.items():
        when = [
            f"seed {seed}: " + ("never" if step is None else f"step {step}, {seconds:.0f} s")
            for seed, step, seconds in runs
        ]
        lines.append(f"{variant} reached {analysis.threshold:g}: {'; '.join(when) or '–'}")
    return lines


def _with_interval(difference: Difference) -> str:
    """``+0.021 (−0.008 … 0.050)``."""
    mean = "–" if difference.mean is None else figures(difference.mean, "+")
    if difference.low is None or difference.high is None:
        return f"{mean} (no interval)"
    return f"{mean} ({figures(difference.low)} … {figures(difference.high)})"


def write(analysis: Analysis, folder: Path) -> list[Path]:
    """Write ``report.json``, ``.csv``, ``.md``, and what was declared: ``verdicts.csv``, ``checks.csv``.

    Each is written whole or not at all.
    """
    contents = {
        "report.json": as_json(analysis),
        "report.csv": _as_csv([_with_seeds(row.flat(), row.by_seed) for row in analysis.rows]),
        "report.md": as_markdown(analysis),
    }
    if analysis.verdicts:
        contents["verdicts.csv"] = _as_csv(
            [_with_seeds(each, each["by_seed"]) for each in _verdicts(analysis)]
        )
    if analysis.checks:
        contents["checks.csv"] = _as_csv([asdict(check) for check in analysis.checks])
    for name, content in contents.items():
        write_whole(folder / name, content)
    return [folder / name for name in contents]


def as_json(analysis: Analysis) -> str:
    """Everything, with the values by seed; the statements first."""
    content = {
        "statements": [{"label": each.label, "sentence": each.sentence} for each in statements(analysis)],
        "verdicts": _verdicts(analysis),
        "checks": [asdict(check) for check in analysis.checks],
        "missing": analysis.missing,
        "warnings": analysis.warnings,
        "settings": analysis.results.settings.as_dict(),
        "rows": [{**row.flat(), "by_seed": row.by_seed} for row in analysis.rows],
        "costs": analysis.costs,
        "threshold": analysis.threshold,
        "reached": {
            variant: [{"seed": seed, "step": step, "seconds": seconds} for seed, step, seconds in runs]
            for variant, runs in analysis.reached.items()
        },
    }
    return numbers_as_text(content)


def _verdicts(analysis: Analysis) -> list[dict[str, Any]]:
    """The verdicts as plain values."""
    return [{**asdict(verdict), "outcome": verdict.outcome.value} for verdict in analysis.verdicts]


def _with_seeds(row: Mapping[str, Any], by_seed: Mapping[int, float]) -> dict[str, Any]:
    """A row without nesting: a column ``seed_N`` for each seed."""
    flat = {name: value for name, value in row.items() if name != "by_seed"}
    return flat | {f"seed_{seed}": value for seed, value in by_seed.items()}


def _as_csv(rows: list[dict[str, Any]]) -> str:
    """Columns in the order in which they first appear."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def as_markdown(analysis: Analysis) -> str:
    """What is missing, the statements, the differences of an exploratory grid, tables, warnings."""
    said = [f"**{each.label}**: {each.sentence}" for each in statements(analysis)]
    last = [*thresholds(analysis), *analysis.warnings]
    parts = [
        *map(_list, (analysis.missing, said, exploratory_lines(analysis))),
        *map(_table, tables(analysis)),
        _list(last),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _list(lines: list[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _table(table: TextTable) -> str:
    lines = [f"### {table.title}", "", _line(table.columns), "|" + "---|" * len(table.columns)]
    return "\n".join([*lines, *(_line(cells) for cells in table.lines)])


def _line(cells: tuple[str, ...] | list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
