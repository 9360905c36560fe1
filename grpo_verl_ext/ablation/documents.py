"""``report.json`` has everything, ``report.csv`` a line for each row, ``report.md`` the tables."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from grpo_verl_ext.ablation import tables
from grpo_verl_ext.ablation.analysis import Analysis
from grpo_verl_ext.ablation.tables import TextTable
from grpo_verl_ext.utils.files import write_whole
from grpo_verl_ext.utils.typed_json import numbers_as_text


def write(analysis: Analysis, folder: Path) -> list[Path]:
    """All three, each whole or not at all."""
    contents = {
        "report.json": as_json(analysis),
        "report.csv": as_csv([row.flat() for row in analysis.rows]),
        "report.md": as_markdown(analysis),
    }
    for name, content in contents.items():
        write_whole(folder / name, content)
    return [folder / name for name in contents]


def as_json(analysis: Analysis) -> str:
    """Values by seed included."""
    content = {
        "settings": analysis.results.settings.as_dict(),
        "rows": [{**row.flat(), "by_seed": row.by_seed} for row in analysis.rows],
        "costs": analysis.costs,
        "threshold": analysis.threshold,
        "reached": {
            variant: [{"seed": seed, "step": step, "seconds": seconds} for seed, step, seconds in runs]
            for variant, runs in analysis.reached.items()
        },
        "cautions": analysis.cautions,
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
    """The tables for a document."""
    shown = [*tables.comparisons(analysis), tables.costs(analysis)]
    parts = [_table(table) for table in shown]
    parts += [f"- {word}" for word in [*tables.thresholds(analysis), *analysis.cautions]]
    return "\n\n".join(parts) + "\n"


def _table(table: TextTable) -> str:
    lines = [f"### {table.title}", "", _line(table.columns), "|" + "---|" * len(table.columns)]
    return "\n".join([*lines, *(_line(cells) for cells in table.lines)])


def _line(cells: tuple[str, ...] | list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
