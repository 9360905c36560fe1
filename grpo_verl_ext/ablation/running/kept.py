"""One JSON file that holds everything a report reads of a grid, to be kept when the runs are removed.

It has ``grid``, ``runs``, and ``control`` where another grid is the control; a run has its ``record``,
``metrics`` in columns, ``samples`` and ``warnings``.
Each metric and each sample is one line, so that git shows what differs.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

from grpo_verl_ext.ablation.declaration.grid import AblationError, GridSettings, check_declaration, runs_of
from grpo_verl_ext.ablation.running.results import GRID, Result, Results, read_results
from grpo_verl_ext.ablation.running.state import RECORD_FIELDS, State
from grpo_verl_ext.ablation.statistics.verdicts import CheckResult
from grpo_verl_ext.runs.dumps import Response
from grpo_verl_ext.runs.metrics import Metrics
from grpo_verl_ext.utils.files import write_whole
from grpo_verl_ext.utils.typed_json import PARSE_ERRORS, as_written, made, typed

COMPACT = "runs.json"
"""The file's usual name; in a folder without ``grid.json`` it is the one that is read."""

RUN_FIELDS = {
    **{"variant": str, "seed": int, "state": str, "metrics": list, "record": dict | None},
    **{"samples": list, "warnings": list[str]},
}
COLUMN_FIELDS = {"steps": list[int], "values": dict[str, list[float | None]]}


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


def write_compact(results: Results, file: Path) -> None:
    """Write the file whole or not at all.

    Raises:
        AblationError: it cannot be written.
    """
    content = {"grid": results.settings.as_dict(), "runs": [_run_as_json(run) for run in results.runs]}
    if results.control is not None:
        content["control"] = as_written(results.control)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, _lines(content) + "\n")
    except (OSError, ValueError) as error:
        raise AblationError(f"--compact is {file}, which cannot be written: {error}") from error


def read_compact(file: Path) -> Results:
    """Read what `write_compact` wrote.

    Raises:
        AblationError: the file is something else. It is left in place.
    """
    try:
        content = typed(json.loads(file.read_bytes()), {"grid": dict, "runs": list})
        settings = made(GridSettings, {**content["grid"], "folder": str(file.parent)})
        runs = [_run_from_json(run) for run in content["runs"]]
        if [(run.variant, run.seed) for run in runs] != [
            (run.variant, run.seed) for run in runs_of(settings)
        ]:
            raise ValueError("its runs are not those of its grid")
        check_declaration(settings)
        control = content.get("control")
        return Results(settings, runs, None if control is None else made(CheckResult, control))
    except (*PARSE_ERRORS, OSError) as error:
        raise AblationError(
            f"{file} is not a file that `ablate report --compact` wrote ({error!r}). It was left in place"
        ) from error


def _run_as_json(run: Result) -> dict[str, Any]:
    return {
        "variant": run.variant,
        "seed": run.seed,
        "state": run.state.value,
        "record": run.record,
        "metrics": _columns(run.metrics),
        "samples": [vars(sample) for sample in run.samples],
        "warnings": run.warnings,
    }


def _run_from_json(content: Any) -> Result:
    run = typed(content, RUN_FIELDS)
    record = run["record"]
    return Result(
        variant=run["variant"],
        seed=run["seed"],
        state=State(run["state"]),
        metrics=_rows(run["metrics"]),
        record=None if record is None else typed(record, RECORD_FIELDS),
        samples=[made(Response, sample) for sample in run["samples"]],
        warnings=run["warnings"],
    )


def _columns(metrics: Metrics) -> list[dict[str, Any]]:
    """Metrics by the steps that have them: ``[{"steps": […], "values": {name: […]}}, …]``; NaN is null."""
    steps_of: dict[str, list[int]] = defaultdict(list)
    for step in sorted(metrics):
        for name in metrics[step]:
            steps_of[name].append(step)
    names_of: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for name, steps in steps_of.items():
        names_of[tuple(steps)].append(name)
    without = [{"steps": steps, "values": {}}] if (steps := [s for s in metrics if not metrics[s]]) else []
    return without + [
        {
            "steps": list(steps),
            "values": {
                name: [None if math.isnan(metrics[step][name]) else metrics[step][name] for step in steps]
                for name in names
            },
        }
        for steps, names in names_of.items()
    ]


def _rows(columns: list[Any]) -> Metrics:
    """The metrics that `_columns` took apart."""
    metrics: Metrics = {}
    for group in columns:
        steps, values = (typed(group, COLUMN_FIELDS)[key] for key in COLUMN_FIELDS)
        metrics.update({step: {} for step in steps if step not in metrics})
        for name, column in values.items():
            for step, value in zip(steps, column, strict=True):
                metrics[step][name] = math.nan if value is None else float(value)
    return metrics


def _lines(value: Any, indent: str = "") -> str:
    """JSON with a line for each key, and for each list or object that holds no object."""
    inner = indent + " "
    if isinstance(value, dict) and any(isinstance(each, dict | list) for each in value.values()):
        lines = [f"{inner}{json.dumps(key)}: {_lines(each, inner)}" for key, each in value.items()]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(each, dict) for each in value):
        return "[\n" + ",\n".join(inner + _lines(each, inner) for each in value) + f"\n{indent}]"
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
