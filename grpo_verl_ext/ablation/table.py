"""Read what a grid's runs have logged, from their files or from a report's table, and write that table."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from grpo_verl_ext.ablation.declaration import GridSettings
from grpo_verl_ext.ablation.grid import GRID, AblationError, Beginning, checked, read_begun, runs_of
from grpo_verl_ext.ablation.results import COLUMNS, CheckResult, Results, RunResult, gathered
from grpo_verl_ext.ablation.state import State, read_record, status_of
from grpo_verl_ext.utils.documents import Document, as_plain, parse_json
from grpo_verl_ext.utils.files import write_whole

TABLE = "metrics.parquet"
"""The table that a report writes; in a folder without ``grid.json`` it is what is read."""
_ABOUT = "ablation"  # key of the file's metadata


def read_results(folder: Path) -> Results:
    """Read a grid's folder, which may have been moved, or the table that a report wrote."""
    table = folder if folder.is_file() else folder / TABLE
    if table.is_file() and not (folder / GRID).exists():
        return read_table(table)
    if not (folder / GRID).is_file():
        raise AblationError(f"{folder} has no {GRID}; valid is a folder that `ablate run` has begun")
    (settings, beginnings), found = read_begun(folder), []
    for run in runs_of(settings):
        status, record = status_of(run), None
        unread = status.reason if status.state is State.UNREADABLE else None
        if status.state is State.FINISHED:
            try:
                record = read_record(run)
            except AblationError as error:
                unread = str(error)
        # the folder may be moved, and reports are shown to others
        warnings = [unread.replace(f"{settings.folder}/", "")] if unread else []
        found.append((RunResult(run.variant, run.seed, status.state, record, warnings), status.metrics))
    return gathered(settings, found, beginnings)


@dataclass(frozen=True)
class _About(Document):
    """What the file of a table has besides its rows."""

    grid: dict[str, Any]
    runs: list[RunResult]
    control: CheckResult | None
    beginnings: list[Beginning]


def write_table(results: Results, file: Path) -> Path:
    """Write the table as Parquet, whole or not at all, with grid and records: all that a report reads."""
    about = _About(results.settings.as_dict(), results.runs, results.control, results.beginnings)
    table, written = pa.Table.from_pandas(results.table, preserve_index=False), pa.BufferOutputStream()
    with pq.ParquetWriter(
        written, table.schema, compression="zstd", compression_level=19, store_schema=False
    ) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({_ABOUT: json.dumps(as_plain(about))})
    write_whole(file, written.getvalue().to_pybytes())
    return file


def read_table(file: Path) -> Results:
    """Read what `write_table` wrote."""
    try:
        content = pq.read_table(file, read_dictionary=["run", "variant", "metric"])
        about = parse_json((content.schema.metadata or {}).get(_ABOUT.encode(), b""), _About)
        table = content.to_pandas()[[*COLUMNS]].astype(COLUMNS)
        plain = json.dumps({**about.grid, "folder": str(file.parent)})
        settings, names = checked(parse_json(plain, GridSettings)), [run.name for run in about.runs]
        if names != [run.name for run in runs_of(settings)] or not {*table["run"].unique()} <= {*names}:
            raise ValueError("its runs or rows are not those of its grid")
        return Results(settings, about.runs, table, about.control, about.beginnings)
    except (ValueError, TypeError, LookupError, OverflowError, OSError, pa.ArrowException) as error:
        why = f"is not a table that `ablate report` wrote ({error})"
        raise AblationError(f"{file} {why}. It was left in place") from error
