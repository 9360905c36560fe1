"""Write an analysis as ``report.json`` (everything), ``report.csv`` (rows) and ``report.md`` (tables)."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_verl_ext.ablation.analysis import Analysis, Row
from grpo_verl_ext.utils.files import write_whole
from grpo_verl_ext.utils.typed_json import numbers_as_text


def write(analysis: Analysis, folder: Path) -> list[Path]:
    """Write the three files, each whole or not at all."""
    contents = {
        "report.json": as_json(analysis),
        "report.csv": as_csv([row.flat() for row in analysis.rows]),
        "report.md": as_markdown(analysis),
    }
    for name, content in contents.items():
        write_whole(folder / name, content)
    return [folder / name for name in contents]


def as_json(analysis: Analysis) -> str:
    """Everything, with the values by seed."""
    content = {
        "settings": analysis.results.settings.as_dict(),
        "rows": [{**row.flat(), "by_seed": row.by_seed} for row in analysis.rows],
        "costs": analysis.costs,
        "threshold": analysis.threshold,
        "reached": {
            variant: [{"seed": seed, "step": step, "seconds": seconds} for seed, step, seconds in runs]
            for variant, runs in analysis.reached.items()
        },
        "missing": analysis.missing,
        "warnings": analysis.warnings,
    }
    return numbers_as_text(content)


def as_csv(rows: list[dict[str, Any]]) -> str:
    """Columns in the order in which they first appear."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def as_markdown(analysis: Analysis) -> str:
    """What is missing, the tables, then thresholds and warnings as a list."""
    shown = [*comparisons(analysis), costs(analysis)]
    parts = [f"- {line}" for line in analysis.missing]
    parts += [_table(table) for table in shown]
    parts += [f"- {line}" for line in [*thresholds(analysis), *analysis.warnings]]
    return "\n\n".join(parts) + "\n"


def _table(table: TextTable) -> str:
    lines = [f"### {table.title}", "", _line(table.columns), "|" + "---|" * len(table.columns)]
    return "\n".join([*lines, *(_line(cells) for cells in table.lines)])


def _line(cells: tuple[str, ...] | list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


COLUMNS = (
    *("variant", "seeds", "mean ± std", "95 %"),
    *("difference", "95 % of it", "p, adjusted", "P(> 0)", "d_z", "wins"),
)
COST_COLUMNS = ("variant", "seconds of steps", "tokens trained on", "peak memory of the actor, GB")


@dataclass(frozen=True)
class TextTable:
    """A table of text: title, names of columns, lines of cells."""

    title: str
    columns: tuple[str, ...]
    lines: list[list[str]]


def comparisons(analysis: Analysis) -> Iterator[TextTable]:
    """A table for each metric and measure, the most important first."""
    baseline = analysis.results.baseline
    for metric, measure in dict.fromkeys((row.metric, row.measure) for row in analysis.rows):
        own = [row for row in analysis.rows if (row.metric, row.measure) == (metric, measure)]
        at = f" (step {analysis.results.settings.steps})" if measure == "final" else ""
        title = f"{metric}, {measure}{at}; differences from {baseline}, paired by seed"
        yield TextTable(title, COLUMNS, [cells(row) for row in own])


def costs(analysis: Analysis) -> TextTable:
    """What each variant cost, mean over its finished runs."""
    lines = [
        [variant, f"{of['seconds']:.0f}", f"{of['tokens']:.0f}", f"{of['memory_gb']:.2f}"]
        for variant, of in analysis.costs.items()
    ]
    return TextTable("what a run took, mean over seeds", COST_COLUMNS, lines)


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


def cells(row: Row) -> list[str]:
    """A row as text, one cell per column of `COLUMNS`."""
    summary, versus = row.summary, row.comparison
    spread = "" if summary.std is None else f" ± {_figures(summary.std)}"
    mine = [
        row.variant,
        str(summary.seeds),
        f"{_figures(summary.mean)}{spread}",
        _interval(summary.low, summary.high),
    ]
    if versus is None:
        return [*mine, *["–"] * 6]
    return [
        *mine,
        _figures(versus.difference, "+"),
        _interval(versus.low, versus.high),
        _probability(row.adjusted_p),
        _probability(versus.probability_higher),
        "–" if versus.effect is None else _figures(versus.effect),
        f"{versus.wins}/{versus.decided}",
    ]


def _interval(low: float | None, high: float | None) -> str:
    return "–" if low is None or high is None else f"{_figures(low)} … {_figures(high)}"


def _figures(value: float, sign: str = "") -> str:
    """Three decimals; two figures where these would be zeros or one figure."""
    return f"{value:{sign}.3f}" if value == 0 or abs(value) >= 0.01 else f"{value:{sign}.2g}"


def _probability(value: float | None) -> str:
    if value is None:
        return "–"
    if value < 0.0005:
        return "< 0.001"
    return "> 0.999" if value > 0.9995 else f"{value:.3f}"
