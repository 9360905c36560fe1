"""Ablations: train each variant of a setup with every seed, and compare them paired by seed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grpo_verl_ext.ablation.page import Page


def compare(source: str | Path) -> Page:
    """Compare a grid's finished runs, for a notebook, which shows the report; nothing is written.

    Args:
        source: the grid's folder, or the table, ``metrics.parquet``, of a report of it.

    Returns:
        The report: ``.report.analysis.verdicts`` are the verdicts, ``.report.analysis.results.table`` is a
        pandas table of all that the runs have logged.

    Raises:
        AblationError: the source cannot be read.
    """
    from grpo_verl_ext.ablation.analysis import analyse
    from grpo_verl_ext.ablation.page import Page
    from grpo_verl_ext.ablation.report import report_of
    from grpo_verl_ext.ablation.table import read_any

    results, _ = read_any(Path(source))
    return Page(report_of(analyse(results)))
