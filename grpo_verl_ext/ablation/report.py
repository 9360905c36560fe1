"""``grpo-verl-ext report``: tables on the terminal, and the same as JSON, CSV and Markdown."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from grpo_verl_ext.ablation.analysis import Row, cautions, costs_of, reached, rows_of
from grpo_verl_ext.ablation.curves import draw
from grpo_verl_ext.ablation.results import Results, read_results
from grpo_verl_ext.files import write_whole

COLUMNS = ("variant", "seeds", "mean ± std", "95 %", "difference", "95 % of it", "p, adjusted", "d_z", "wins")


def report(folder: Path, *, threshold: float | None) -> None:
    """Print and write what the runs in the folder say.

    Raises:
        AblationError: see `read_results`.
    """
    results = read_results(folder)
    rows = rows_of(results)
    words = cautions(results, rows)
    console = Console(soft_wrap=True, highlight=False)
    for metric, measure in dict.fromkeys((row.metric, row.measure) for row in rows):
        console.print(table(results, metric, measure, rows))
    if threshold is not None:
        _print_reached(console, results, threshold)
    for word in words:
        console.print(word, markup=False)
    write_files(folder, results, rows, words)
    console.print(f"{folder}/report.json, .csv, .md", markup=False)
    for file in draw(results, folder):
        console.print(str(file), markup=False)


def table(results: Results, metric: str, measure: str, rows: list[Row]) -> Table:
    """One metric and measure; differences are from the baseline, paired by seed."""
    shown = Table(
        title=f"{escape(metric)}, {measure}; differences from {escape(results.baseline)}, paired by seed"
    )
    for name in COLUMNS:
        shown.add_column(name, justify="left" if name == "variant" else "right")
    for row in rows:
        if (row.metric, row.measure) == (metric, measure):
            shown.add_row(*(escape(cell) for cell in cells(row)))
    return shown


def cells(row: Row) -> list[str]:
    """A row of `COLUMNS` as text."""
    summary, versus = row.summary, row.comparison
    spread = "" if summary.std is None else f" ± {summary.std:.3f}"
    mine = [
        row.variant,
        str(summary.seeds),
        f"{summary.mean:.3f}{spread}",
        _interval(summary.low, summary.high),
    ]
    if versus is None:
        return [*mine, *["–"] * 5]
    return [
        *mine,
        f"{versus.difference:+.3f}",
        _interval(versus.low, versus.high),
        _number(row.adjusted_p),
        _number(versus.effect),
        f"{versus.wins}/{versus.seeds}",
    ]


def write_files(folder: Path, results: Results, rows: list[Row], words: list[str]) -> None:
    """``report.json`` has everything, ``report.csv`` a line for each row, ``report.md`` the tables."""
    content = {
        "settings": results.settings.as_dict(),
        "rows": [{**row.flat(), "by_seed": row.by_seed} for row in rows],
        "costs": costs_of(results),
        "cautions": words,
    }
    write_whole(folder / "report.json", json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    write_whole(folder / "report.csv", _csv([row.flat() for row in rows]))
    write_whole(folder / "report.md", markdown(results, rows, words))


def markdown(results: Results, rows: list[Row], words: list[str]) -> str:
    """The tables for a document."""
    parts = []
    for metric, measure in dict.fromkeys((row.metric, row.measure) for row in rows):
        lines = [
            f"### {metric}, {measure}",
            "",
            f"Differences from `{results.baseline}`, paired by seed.",
            "",
        ]
        lines += ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
        own = [row for row in rows if (row.metric, row.measure) == (metric, measure)]
        lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in cells(row)) + " |" for row in own]
        parts.append("\n".join(lines))
    parts += [f"- {word}" for word in words]
    return "\n\n".join(parts) + "\n"


def _csv(rows: list[dict[str, Any]]) -> str:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _print_reached(console: Console, results: Results, threshold: float) -> None:
    for variant, runs in reached(results, threshold).items():
        words = [
            f"seed {seed}: " + ("never" if step is None else f"step {step}, {seconds:.0f} s")
            for seed, step, seconds in runs
        ]
        console.print(f"{variant} reached {threshold:g}: {'; '.join(words) or '–'}", markup=False)


def _interval(low: float | None, high: float | None) -> str:
    return "–" if low is None or high is None else f"{low:.3f} … {high:.3f}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
