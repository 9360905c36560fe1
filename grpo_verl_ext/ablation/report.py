"""``grpo-verl-ext ablate report``: print the tables, and write them with figures into files."""

from __future__ import annotations

from pathlib import Path

from rich import box
from rich.markup import escape
from rich.table import Table

from grpo_verl_ext.ablation import documents, html, plots
from grpo_verl_ext.ablation.analysis import analyse
from grpo_verl_ext.ablation.compact import read_any, write_compact
from grpo_verl_ext.ablation.documents import TextTable
from grpo_verl_ext.utils.terminal import make_console

WIDTH = 120
"""Smallest width in columns, so that a row of numbers is one line."""


def print_report(source: Path, *, threshold: float | None, compact: Path | None = None) -> None:
    """Compare a grid's finished runs on the terminal and in files.

    Args:
        source: the grid's folder, which takes the files; or its compact file, whose folder takes them.
        compact: also write this compact file.

    Raises:
        AblationError: the source cannot be read, or the compact file not be written.
    """
    results, folder = read_any(source)
    analysis = analyse(results, threshold=threshold)
    console = make_console(at_least=WIDTH)
    for shown in [*documents.comparisons(analysis), documents.costs(analysis)]:
        console.print(_table(shown))  # the box ends with a blank line
    for line in [*documents.thresholds(analysis), *analysis.warnings]:
        console.print(line, markup=False)
    written = [
        *documents.write(analysis, folder),
        *plots.draw(results, folder),
        html.write(analysis, folder),
    ]
    if compact is not None:
        write_compact(results, compact)
        written.append(compact)
    for file in written:
        console.print(str(file), markup=False)


def _table(shown: TextTable) -> Table:
    table = Table(title=escape(shown.title), title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in shown.columns:
        table.add_column(name, justify="left" if name == "variant" else "right")
    for line in shown.lines:
        table.add_row(*(escape(cell) for cell in line))
    return table
