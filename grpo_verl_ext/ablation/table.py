"""All that a grid's runs have logged in one tidy table, read from their files or from that of a report."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from grpo_verl_ext.ablation.declaration import GridSettings
from grpo_verl_ext.ablation.grid import (
    GRID,
    AblationError,
    Beginning,
    read_beginnings,
    read_kept,
    read_kept_grid,
    runs_of,
)
from grpo_verl_ext.ablation.state import Record, State, read_record, status_of, unlike_the_others
from grpo_verl_ext.runs.metrics import Metrics
from grpo_verl_ext.utils.documents import Document, as_plain, parse_json
from grpo_verl_ext.utils.files import write_whole

TABLE = "metrics.parquet"
"""The table that a report writes; in a folder without ``grid.json`` it is what is read."""
_ABOUT = "ablation"
"""Key of the file's metadata."""
_COLUMNS = {
    **{"run": "category", "variant": "category", "seed": "int32", "step": "int32", "metric": "category"},
    "value": "float64",
}


@dataclass(frozen=True)
class CheckResult:
    """A manipulation check of one variant, or the positive control."""

    name: str
    variant: str
    value: float | None
    """Mean over the variant's runs, or the control's difference; None: not measured."""
    passed: bool
    is_control: bool
    sentence: str


@dataclass(frozen=True)
class RunResult:
    """One run without its numbers, which are in the table."""

    variant: str
    seed: int
    state: State
    record: Record | None = None
    warnings: list[str] = field(default_factory=list)
    """Files that cannot be read, with paths relative to the grid's folder."""

    @property
    def name(self) -> str:
        """``<variant>/seed-<seed>``."""
        return f"{self.variant}/seed-{self.seed}"


@dataclass
class Results:
    """All runs of a grid: the one table from which statistics and reports are made."""

    settings: GridSettings
    runs: list[RunResult]
    table: pd.DataFrame
    """A row for each number that a run has logged: run, variant, seed, step, metric, value."""
    control: CheckResult | None = None
    """The control of another grid that ``control.grid`` names, once it is read; the table keeps it."""
    beginnings: list[Beginning] = field(default_factory=list)
    """When the first run of a declared grid began; more than one if records were removed."""
    measured: dict[str, tuple[dict[tuple[str, int], dict[str, float]], dict[str, list[str]]]] = field(
        default_factory=dict, repr=False
    )
    """What `measures.measured_runs` has found of each metric."""
    variants: list[str] = field(init=False)
    """Names of the variants, the baseline first."""
    left_out: dict[tuple[str, int], str] = field(init=False)
    """(variant, seed) of each finished run that cannot be compared with the others → why."""
    compared: list[RunResult] = field(init=False)
    """The finished runs that are compared."""

    def __post_init__(self) -> None:
        self.variants = list(dict.fromkeys([self.settings.base_variant, *(run.variant for run in self.runs)]))
        finished = {(run.variant, run.seed): run for run in self.runs if run.state is State.FINISHED}
        self.left_out = unlike_the_others({key: run.record for key, run in finished.items()}, self.settings)
        self.compared = [run for key, run in finished.items() if key not in self.left_out]


def gathered(settings: GridSettings, runs: Iterable[tuple[RunResult, Metrics]]) -> Results:
    """Put the metrics of all runs into one table."""
    found, rows = [], []
    for run, metrics in runs:
        found.append(run)
        for step, logged in sorted(metrics.items()):
            rows += [(run.name, run.variant, run.seed, step, *each) for each in logged.items()]
    return Results(settings, found, pd.DataFrame(rows, columns=[*_COLUMNS]).astype(_COLUMNS))


def read_results(folder: Path) -> Results:
    """Read a grid's folder, which may have been moved, or the table that a report wrote."""
    table = folder if folder.is_file() else folder / TABLE
    if table.is_file() and not (folder / GRID).exists():
        return read_table(table)
    if not (folder / GRID).is_file():
        raise AblationError(f"{folder} has no {GRID}; valid is a folder that `ablate run` has begun")
    settings, found = read_kept_grid(folder), []
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
    return replace(gathered(settings, found), beginnings=read_beginnings(folder))


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
    with pq.ParquetWriter(written, table.schema, compression="zstd", store_schema=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({_ABOUT: json.dumps(as_plain(about))})
    write_whole(file, written.getvalue().to_pybytes())
    return file


def read_table(file: Path) -> Results:
    """Read what `write_table` wrote."""
    try:
        content = pq.read_table(file, read_dictionary=["run", "variant", "metric"])
        about = parse_json((content.schema.metadata or {}).get(_ABOUT.encode(), b""), _About)
        table = content.to_pandas()[[*_COLUMNS]].astype(_COLUMNS)
        settings, names = read_kept(about.grid, file.parent), [run.name for run in about.runs]
        if names != [run.name for run in runs_of(settings)]:
            raise ValueError("its runs are not those of its grid")
        if not {*table["run"].unique()} <= {*names}:
            raise ValueError("its rows are not those of its runs")
        return Results(settings, about.runs, table, about.control, about.beginnings)
    except (ValueError, TypeError, LookupError, OverflowError, OSError, pa.ArrowException) as error:
        raise AblationError(
            f"{file} is not a table that `ablate report` wrote ({error}). It was left in place"
        ) from error
