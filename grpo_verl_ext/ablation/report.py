"""``grpo-verl-ext report``: tables on the terminal, and files that say the same."""

from __future__ import annotations

from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from grpo_verl_ext.ablation import documents, html, plots
from grpo_verl_ext.ablation.analysis import analyse
from grpo_verl_ext.ablation.documents import TextTable
from grpo_verl_ext.ablation.results import read_results

WIDTH = 120
"""Columns at least: a row of numbers is one line, wherever it goes."""


def report(folder: Path, *, threshold: float | None) -> None:
    """Print and write what the runs in the folder say.

    Raises:
        AblationError: see `read_results`.
    """
    analysis = analyse(read_results(folder), threshold=threshold)
    console = Console(soft_wrap=True, highlight=False)
    console.width = max(console.width, WIDTH)
    for shown in [*documents.comparisons(analysis), documents.costs(analysis)]:
        console.print(_table(shown))
    for word in [*documents.thresholds(analysis), *analysis.cautions]:
        console.print(word, markup=False)
    written = [
        *documents.write(analysis, folder),
        *plots.draw(analysis.results, folder),
        html.write(analysis, folder),
    ]
    for file in written:
        console.print(str(file), markup=False)


def _table(shown: TextTable) -> Table:
    table = Table(title=escape(shown.title), title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in shown.columns:
        table.add_column(name, justify="left" if name == "variant" else "right")
    for line in shown.lines:
        table.add_row(*(escape(cell) for cell in line))
    return table
