"""Write an analysis as JSON (everything), CSV (rows, verdicts and checks) and Markdown (what is shown)."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from grpo_verl_ext.ablation.report import summary
from grpo_verl_ext.ablation.report.summary import TextTable
from grpo_verl_ext.ablation.statistics.analysis import Analysis
from grpo_verl_ext.utils.files import write_whole
from grpo_verl_ext.utils.typed_json import numbers_as_text


def write(analysis: Analysis, folder: Path) -> list[Path]:
    """Write ``report.json``, ``.csv``, ``.md``, and what was declared: ``verdicts.csv``, ``checks.csv``.

    Each is written whole or not at all.
    """
    contents = {
        "report.json": as_json(analysis),
        "report.csv": as_csv([with_seeds(row.flat(), row.by_seed) for row in analysis.rows]),
        "report.md": as_markdown(analysis),
    }
    if analysis.verdicts:
        contents["verdicts.csv"] = as_csv([with_seeds(each, each["by_seed"]) for each in verdicts(analysis)])
    if analysis.checks:
        contents["checks.csv"] = as_csv([asdict(check) for check in analysis.checks])
    for name, content in contents.items():
        write_whole(folder / name, content)
    return [folder / name for name in contents]


def as_json(analysis: Analysis) -> str:
    """Everything, with the values by seed; the statements first."""
    content = {
        "statements": [
            {"label": each.label, "sentence": each.sentence} for each in summary.statements(analysis)
        ],
        "verdicts": verdicts(analysis),
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


def verdicts(analysis: Analysis) -> list[dict[str, Any]]:
    """The verdicts as plain values."""
    return [{**asdict(verdict), "outcome": verdict.outcome.value} for verdict in analysis.verdicts]


def with_seeds(row: Mapping[str, Any], by_seed: Mapping[int, float]) -> dict[str, Any]:
    """A row without nesting: a column ``seed_N`` for each seed."""
    flat = {name: value for name, value in row.items() if name != "by_seed"}
    return flat | {f"seed_{seed}": value for seed, value in by_seed.items()}


def as_csv(rows: list[dict[str, Any]]) -> str:
    """Columns in the order in which they first appear."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def as_markdown(analysis: Analysis) -> str:
    """What is missing, the statements, the differences of an exploratory grid, tables, warnings."""
    said = [f"**{each.label}**: {each.sentence}" for each in summary.statements(analysis)]
    last = [*summary.thresholds(analysis), *analysis.warnings]
    parts = [
        *map(_list, (analysis.missing, said, summary.exploratory_lines(analysis))),
        *map(_table, summary.tables(analysis)),
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
