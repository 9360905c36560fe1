"""Read the metrics that verl's file logger wrote, over all attempts of a run."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from grpo_verl_ext.utils.typed_json import PARSE_ERRORS, typed

Metrics = dict[int, dict[str, float]]
"""Step → name → value."""

TRAINED = "training/global_step"
"""Metric that verl logs with every training step, and not with a validation alone."""

LARGEST = 1e150
"""The square of a larger number may overflow a float."""


class CorruptMetricsError(ValueError):
    """A metrics file cannot be read, or has a complete line that is not verl's; the message says where."""


def read_metrics(files: Iterable[Path]) -> Metrics:
    """Return metrics by step; a later file wins for a step that it repeats.

    verl's logger writes null for NaN and for infinities; here they are NaN, and so is a number larger than
    `LARGEST`. Values that are not numbers, such as lists, are left out.

    Raises:
        CorruptMetricsError: a file cannot be read, or a complete line is not a record. A last line without a
            line end is skipped: verl was killed, or is still writing.
    """
    metrics: Metrics = {}
    for file in files:
        for record in _records(file):
            metrics.setdefault(record["step"], {}).update(record["data"])
    return metrics


def _records(file: Path) -> Iterator[dict[str, Any]]:
    try:
        whole_lines = file.read_bytes().split(b"\n")[:-1]
    except OSError as error:
        raise CorruptMetricsError(
            f"{file} cannot be read as verl's metrics ({error.strerror}). It was left in place; move it "
            f"away to continue without it"
        ) from error
    for number, line in enumerate(whole_lines, start=1):
        try:
            record = typed(json.loads(line), {"step": int, "data": dict})
            yield {"step": record["step"], "data": _numbers(record["data"])}
        except PARSE_ERRORS as error:
            raise CorruptMetricsError(
                f"{file}, line {number}, is no record of verl's file logger ({error!r}). It was left in "
                f"place; move it away to continue without it"
            ) from error


def _numbers(data: dict[str, Any]) -> dict[str, float]:
    return {
        name: float(value) if value is not None and abs(value) <= LARGEST else math.nan
        for name, value in data.items()
        if value is None or isinstance(value, int | float)
    }
