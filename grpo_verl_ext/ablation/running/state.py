"""The state of a run, read from its files alone."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from typing import Any

from grpo_verl_ext.ablation.declaration.grid import AblationError, GridRun
from grpo_verl_ext.runs.metrics import CorruptMetricsError, Metrics
from grpo_verl_ext.utils.files import write_whole
from grpo_verl_ext.utils.typed_json import PARSE_ERRORS, typed

FAILURE = "failed.txt"
RECORD = "run.json"
RECORD_FIELDS = {
    "overrides": list[str],
    "steps": int,
    "git_revision": str | None,
    "versions": dict[str, str],
}
"""The fields of a record that are read, and their types."""


class State(str, Enum):
    """The state of a run."""

    WAITING = "waiting"
    BEGUN = "begun"
    """Started and not finished; the next attempt resumes from the last checkpoint."""
    FAILED = "failed"
    FINISHED = "finished"
    UNREADABLE = "unreadable"
    """A file of it cannot be read: it is neither started nor compared until that is mended or moved."""


@dataclass(frozen=True)
class RunStatus:
    """A run's state and metrics at the time of reading."""

    run: GridRun
    state: State
    metrics: Metrics
    reason: str | None = None
    """Why the run failed, or what cannot be read."""

    @property
    def step(self) -> int:
        """The last logged step; 0 before the first."""
        return max(self.metrics, default=0)

    def is_to_do(self, *, retry_failed: bool) -> bool:
        """Whether ``ablate run`` starts it."""
        return self.state in (State.WAITING, State.BEGUN) or (self.state is State.FAILED and retry_failed)


def status_of(run: GridRun) -> RunStatus:
    """Read a run's files: it is finished once its last step is logged, with or without checkpoints."""
    metrics: Metrics = {}
    try:
        metrics = run.training.metrics()
        if run.training.has_ended(metrics):
            return RunStatus(run, State.FINISHED, metrics)
        failure = failure_of(run)
    except CorruptMetricsError as error:
        return RunStatus(run, State.UNREADABLE, {}, str(error))
    except OSError as error:
        why = f"{error.filename} cannot be read ({error.strerror}). It was left in place; move it away"
        return RunStatus(run, State.UNREADABLE, metrics, why)
    if failure is not None:
        return RunStatus(run, State.FAILED, metrics, failure)
    return RunStatus(run, State.BEGUN if run.training.folder.is_dir() else State.WAITING, metrics)


def state_of(run: GridRun) -> State:
    """The state alone."""
    return status_of(run).state


def failure_of(run: GridRun) -> str | None:
    """Why the last attempt failed; None if it did not."""
    file = run.training.folder / FAILURE
    return file.read_text(encoding="utf-8", errors="replace") if file.exists() else None


def note_failure(run: GridRun, reason: str) -> None:
    """Write the reason into the run's folder."""
    run.training.folder.mkdir(parents=True, exist_ok=True)
    write_whole(run.training.folder / FAILURE, reason + "\n")


def forget_failure(run: GridRun) -> None:
    """Remove the reason before the next attempt."""
    (run.training.folder / FAILURE).unlink(missing_ok=True)


def write_record(run: GridRun, content: dict[str, object]) -> None:
    """Write overrides, commit and versions into the run's folder, unless an earlier attempt did."""
    file = run.training.folder / RECORD
    if not file.exists():
        run.training.folder.mkdir(parents=True, exist_ok=True)
        write_whole(file, json.dumps(content, indent=2) + "\n")


def read_record(run: GridRun) -> dict[str, Any] | None:
    """The `RECORD_FIELDS` that `write_record` wrote; None if the run has not begun.

    Raises:
        AblationError: the file is not a record. It is left in place.
    """
    file = run.training.folder / RECORD
    try:
        if not file.exists():
            return None
        record = typed(json.loads(file.read_bytes()), RECORD_FIELDS)
        return {key: record[key] for key in RECORD_FIELDS}
    except (*PARSE_ERRORS, OSError) as error:
        raise AblationError(
            f"{file} is not the record of a run ({error!r}). It was left in place; type folder=<another>"
        ) from error
