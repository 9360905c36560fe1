"""What the runs of a grid have left: one tidy table, read from the grid's folder or its compact file.

The compact file (``ablate report --compact``) keeps everything that a report reads, for when the runs are
removed.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from grpo_verl_ext.ablation.declaration.comparisons import Declaration
from grpo_verl_ext.ablation.declaration.grid import AblationError, GridRun, GridSettings, check_declaration
from grpo_verl_ext.ablation.declaration.kept import GRID, Beginning, read_beginnings, read_kept_grid
from grpo_verl_ext.ablation.running.checks import unlike_the_others
from grpo_verl_ext.ablation.running.responses import (
    CHARACTERS,
    Measure,
    measure_of,
    measure_of_model,
    read_responses,
)
from grpo_verl_ext.ablation.running.state import Record, State, read_record, status_of
from grpo_verl_ext.runs.dumps import Response
from grpo_verl_ext.runs.metrics import Metrics
from grpo_verl_ext.utils.documents import Document, as_plain, from_plain, parse_json
from grpo_verl_ext.utils.files import write_whole

COMPACT = "runs.json"
"""The compact file's usual name; in a folder without ``grid.json`` it is the one that is read."""


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
    """Overrides, steps, commit and versions of a finished run."""
    samples: list[Response] = field(default_factory=list)
    """Responses of the last validation."""
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
    """A row for each number that a run has logged: variant, seed, step, metric, value."""
    control: CheckResult | None = None
    """The control of another grid that ``control.grid`` names, once it is read; a compact file keeps it."""
    beginnings: list[Beginning] = field(default_factory=list)
    """When the first run of a declared grid began; more than one if records were removed."""
    values: dict[str, dict[str, dict[str, dict[int, float]]]] = field(default_factory=dict, repr=False)
    """What `values_of` has found: metric → measure → variant → seed → value."""
    declared: Declaration = field(init=False)
    baseline: str = field(init=False)
    """The variant that the others are compared with."""
    variants: list[str] = field(init=False)
    """Names of the variants, the baseline first."""
    left_out: dict[tuple[str, int], str] = field(init=False)
    """(variant, seed) of each finished run that cannot be compared with the others → why."""
    compared: list[RunResult] = field(init=False)
    """The finished runs that are compared."""
    finished: dict[str, list[RunResult]] = field(init=False)
    """The same by variant."""

    def __post_init__(self) -> None:
        self.declared = self.settings.declaration
        self.baseline = self.declared.baseline
        self.variants = list(dict.fromkeys([self.baseline, *(run.variant for run in self.runs)]))
        finished = {(run.variant, run.seed): run for run in self.runs if run.state is State.FINISHED}
        self.left_out = unlike_the_others({key: run.record for key, run in finished.items()}, self.settings)
        self.compared = [run for key, run in finished.items() if key not in self.left_out]
        self.finished = {variant: [] for variant in self.variants}
        for run in self.compared:
            self.finished[run.variant].append(run)


def gathered(
    settings: GridSettings, runs: Iterable[tuple[RunResult, Metrics]], control: CheckResult | None = None
) -> Results:
    """Put the metrics of all runs into one table."""
    results: list[RunResult] = []
    names: dict[str, int] = {}
    columns: dict[str, array[Any]] = {
        "run": array("q"),
        "step": array("q"),
        "metric": array("q"),
        "value": array("d"),
    }
    for result, metrics in runs:
        for step, logged in sorted(metrics.items()):
            columns["run"].extend([len(results)] * len(logged))
            columns["step"].extend([step] * len(logged))
            columns["metric"].extend([names.setdefault(name, len(names)) for name in logged])
            columns["value"].extend(logged.values())
        results.append(result)
    return Results(settings, results, _table_of(results, [*names], columns), control)


def _table_of(runs: list[RunResult], names: list[str], columns: Mapping[str, Any]) -> pd.DataFrame:
    """Make the table from columns of numbers: run, step, metric, value; runs and metrics are indices."""
    index = np.asarray(columns["run"])

    def of_runs(values: list[Any]) -> pd.Categorical:
        codes = {each: code for code, each in enumerate(dict.fromkeys(values))}
        return pd.Categorical.from_codes(
            np.array([codes[each] for each in values], np.int32)[index], [*codes]
        )

    named = {
        "variant": of_runs([run.variant for run in runs]),
        "seed": of_runs([run.seed for run in runs]),
        "step": np.asarray(columns["step"], dtype=np.int32),
        "metric": pd.Categorical.from_codes(np.asarray(columns["metric"]), names),
        "value": np.asarray(columns["value"], dtype=np.float64),
    }
    return pd.DataFrame(named, copy=False)


def read_any(path: Path) -> tuple[Results, Path]:
    """Read a grid's folder or its compact file.

    Returns:
        The results, and the folder that a report of them belongs in.

    Raises:
        AblationError: the path is neither, or cannot be read.
    """
    if path.is_file():
        return read_compact(path), path.parent
    if (path / COMPACT).is_file() and not (path / GRID).exists():
        return read_compact(path / COMPACT), path
    return read_results(path), path


def read_results(folder: Path) -> Results:
    """Read a grid's folder, which may have been moved.

    Raises:
        AblationError: the grid is missing or cannot be read; it is left in place.
    """
    if not (folder / GRID).is_file():
        raise AblationError(f"{folder} has no {GRID}; valid is a folder that `ablate run` has begun")
    settings, runs = read_kept_grid(folder)
    of_model = cache(measure_of_model)
    results = gathered(settings, (_read(run, settings, of_model) for run in runs))
    return replace(results, beginnings=read_beginnings(folder))


def _read(
    run: GridRun, settings: GridSettings, of_model: Callable[[str], Measure]
) -> tuple[RunResult, Metrics]:
    record, unread = None, None
    try:
        record = read_record(run)
    except AblationError as error:
        unread = str(error)
    status = status_of(run)
    if status.state is not State.FINISHED:
        unreadable = status.state is State.UNREADABLE and status.reason
        warnings = [_relative(status.reason, settings)] if status.reason and unreadable else []
        return RunResult(run.variant, run.seed, status.state, warnings=warnings), status.metrics
    measure = partial(measure_of, run.training.folder, of_model)
    responses = read_responses(run.training, measure, right_above=settings.right_above)
    of_steps = responses.metrics
    metrics = {step: {**values, **of_steps.get(step, {})} for step, values in status.metrics.items()}
    in_characters = any(f"/{CHARACTERS}/" in name for each in of_steps.values() for name in each)
    warning = measure().warning if in_characters else None
    warnings = [_relative(each, settings) for each in [*responses.warnings, warning, unread] if each]
    return RunResult(run.variant, run.seed, status.state, record, responses.samples, warnings), metrics


def _relative(warning: str, settings: GridSettings) -> str:
    """The folder may be moved, and reports are shown to others."""
    return warning.replace(f"{settings.folder}/", "")


@dataclass(frozen=True)
class _Columns:
    """The rows of one metric: number of the run, step and value, each column as `_packed`."""

    run: str
    step: str
    value: str


_KINDS = {"run": "<i4", "step": "<i4", "value": "<f8"}
"""Types of the columns."""


@dataclass(frozen=True)
class _Steps:
    """Metrics of a run at the steps that have them, as files of earlier versions keep them; NaN is null."""

    steps: list[int]
    values: dict[str, list[float | None]]


@dataclass(frozen=True, kw_only=True)
class _KeptRun:
    variant: str
    seed: int
    state: State
    record: Record | None
    metrics: list[_Steps] | None = None
    """In files of earlier versions alone."""
    samples: list[Response]
    warnings: list[str]


@dataclass(frozen=True)
class _Kept(Document):
    """The compact file."""

    grid: dict[str, Any]
    runs: list[_KeptRun]
    metrics: dict[str, _Columns] | None = None
    """The table by metric; None in files of earlier versions."""
    control: CheckResult | None = None
    beginnings: list[Beginning] = field(default_factory=list)


def write_compact(results: Results, file: Path) -> None:
    """Write the file whole or not at all: one JSON object with a line for each metric and each sample.

    Raises:
        AblationError: it cannot be written.
    """
    kept = _Kept(
        results.settings.as_dict(),
        [_KeptRun(**vars(run)) for run in results.runs],
        dict(_columns_of(results)),
        results.control,
        results.beginnings,
    )
    content = as_plain(kept)
    for run in content["runs"]:
        del run["metrics"]
    if results.control is None:
        del content["control"]
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, _lines(content) + "\n")
    except (OSError, ValueError) as error:
        raise AblationError(f"--compact is {file}, which cannot be written: {error}") from error


def _columns_of(results: Results) -> Iterator[tuple[str, _Columns]]:
    number = {(run.variant, run.seed): index for index, run in enumerate(results.runs)}
    table = results.table
    run_of = np.array(
        [
            [number.get((variant, seed), -1) for seed in table["seed"].cat.categories]
            for variant in table["variant"].cat.categories
        ]
    )
    for name, rows in table.groupby("metric", observed=True, sort=False):
        runs = run_of[rows["variant"].cat.codes, rows["seed"].cat.codes]
        columns = {"run": runs, "step": rows["step"], "value": rows["value"]}
        yield (
            str(name),
            _Columns(**{key: _packed(np.asarray(columns[key], kind)) for key, kind in _KINDS.items()}),
        )


def read_compact(file: Path) -> Results:
    """Read what `write_compact` wrote, in this version or an earlier one.

    Raises:
        AblationError: the file is something else. It is left in place.
    """
    try:
        kept = parse_json(file.read_bytes(), _Kept)
        settings = from_plain({**kept.grid, "folder": str(file.parent)}, GridSettings)
        check_declaration(settings)
        of_grid = [(variant, seed) for seed in settings.seeds for variant in settings.declaration.variants]
        if [(run.variant, run.seed) for run in kept.runs] != of_grid:
            raise ValueError("its runs are not those of its grid")
        if any((run.metrics is None) is (kept.metrics is None) for run in kept.runs):
            raise ValueError("it has metrics either of the whole grid or of each run")
        if kept.metrics is None:
            return gathered(
                settings, ((_result(run), _rows(run.metrics or [])) for run in kept.runs), kept.control
            )
        runs = [_result(run) for run in kept.runs]
        return Results(settings, runs, _table(runs, kept.metrics), kept.control, kept.beginnings)
    except (ValueError, OverflowError, OSError, zlib.error) as error:
        raise AblationError(
            f"{file} is not a file that `ablate report --compact` wrote ({error}). It was left in place"
        ) from error


def _result(run: _KeptRun) -> RunResult:
    return RunResult(run.variant, run.seed, run.state, run.record, run.samples, run.warnings)


def _rows(groups: list[_Steps]) -> Metrics:
    metrics: Metrics = {}
    for group in groups:
        metrics.update({step: {} for step in group.steps if step not in metrics})
        for name, column in group.values.items():
            for step, value in zip(group.steps, column, strict=True):
                metrics[step][name] = math.nan if value is None else value
    return metrics


def _table(runs: list[RunResult], metrics: dict[str, _Columns]) -> pd.DataFrame:
    columns, lengths = {}, set()
    for name, kind in _KINDS.items():  # one after the other, so that few copies are in memory at once
        parts = [_unpacked(getattr(each, name), kind) for each in metrics.values()]
        lengths.add(tuple(map(len, parts)))
        columns[name] = np.concatenate([np.zeros(0, kind), *parts])
    number = columns["run"]
    if len(lengths) > 1 or not ((number >= 0) & (number < len(runs))).all():
        raise ValueError("its columns do not fit its runs")
    columns["metric"] = np.repeat(np.arange(len(metrics), dtype=np.int32), lengths.pop())
    return _table_of(runs, [*metrics], columns)


def _packed(column: np.ndarray) -> str:
    """Compressed first bytes of all numbers, then their second bytes, …: most numbers are of float32."""
    data = column.view(np.uint8).reshape(-1, column.itemsize).T.tobytes()
    return base64.b64encode(zlib.compress(data)).decode()


def _unpacked(text: str, dtype: str) -> np.ndarray:
    data = np.frombuffer(zlib.decompress(base64.b64decode(text, validate=True)), np.uint8)
    unpacked: np.ndarray = data.reshape(np.dtype(dtype).itemsize, -1).T.copy().view(dtype).ravel()
    return unpacked


def _lines(value: Any, indent: str = "") -> str:
    """JSON with a line for each key, and for each list or object that holds no object."""
    inner = indent + " "
    if isinstance(value, dict) and any(isinstance(each, dict | list) for each in value.values()):
        lines = [f"{inner}{json.dumps(key)}: {_lines(each, inner)}" for key, each in value.items()]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(each, dict) for each in value):
        return "[\n" + ",\n".join(inner + _lines(each, inner) for each in value) + f"\n{indent}]"
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
