"""How far a run is, from its files alone."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from typing import Any

from grpo_verl_ext.ablation.grid import AblationError, GridRun
from grpo_verl_ext.runs.metrics import CorruptMetricsError, Metrics
from grpo_verl_ext.utils.files import write_whole
from grpo_verl_ext.utils.typed_json import PARSE_ERRORS, typed

FAILURE = "failed.txt"
RECORD = "run.json"
READ = {"overrides": list[str], "steps": int, "git_revision": str | None, "versions": dict[str, str]}
"""What is read of a record, and its types."""


class State(str, Enum):
    """What can be said of a run."""

    WAITING = "waiting"
    BEGUN = "begun"
    """There are attempts; the next one goes on from the last checkpoint."""
    FAILED = "failed"
    FINISHED = "finished"
    UNREADABLE = "unreadable"
    """Its metrics are corrupt; it is neither run nor compared until somebody has looked."""


@dataclass(frozen=True)
class Standing:
    """A run as its files have it now."""

    run: GridRun
    state: State
    metrics: Metrics
    trouble: str | None = None
    """Why it failed, or what cannot be read."""

    @property
    def step(self) -> int:
        """The last one that was logged; 0 before the first."""
        return max(self.metrics, default=0)

    def is_to_do(self, *, retry_failed: bool) -> bool:
        """Is it to be started?"""
        return self.state in (State.WAITING, State.BEGUN) or (self.state is State.FAILED and retry_failed)


def standing_of(run: GridRun) -> Standing:
    """Finished runs have logged their last step, checkpoints or not; failed ones have said why."""
    try:
        metrics = run.training.metrics()
    except CorruptMetricsError as error:
        return Standing(run, State.UNREADABLE, {}, str(error))
    if run.training.steps in metrics:
        return Standing(run, State.FINISHED, metrics)
    failure = failure_of(run)
    if failure is not None:
        return Standing(run, State.FAILED, metrics, failure)
    return Standing(run, State.BEGUN if run.training.folder.is_dir() else State.WAITING, metrics)


def state_of(run: GridRun) -> State:
    """The one word of `standing_of`."""
    return standing_of(run).state


def failure_of(run: GridRun) -> str | None:
    """Why the last attempt failed."""
    file = run.training.folder / FAILURE
    return file.read_text(encoding="utf-8") if file.exists() else None


def note_failure(run: GridRun, reason: str) -> None:
    """Keep the reason with the run."""
    run.training.folder.mkdir(parents=True, exist_ok=True)
    write_whole(run.training.folder / FAILURE, reason + "\n")


def forget_failure(run: GridRun) -> None:
    """The run is tried again."""
    (run.training.folder / FAILURE).unlink(missing_ok=True)


def write_record(run: GridRun, content: dict[str, object]) -> None:
    """What the run was made with; the first attempt's stays."""
    file = run.training.folder / RECORD
    if not file.exists():
        run.training.folder.mkdir(parents=True, exist_ok=True)
        write_whole(file, json.dumps(content, indent=2) + "\n")


def read_record(run: GridRun) -> dict[str, Any] | None:
    """What `write_record` wrote; None if the run has not begun.

    Raises:
        AblationError: it is no record. It is left in place.
    """
    file = run.training.folder / RECORD
    if not file.exists():
        return None
    try:
        record = typed(json.loads(file.read_bytes()), READ)
        return {key: record[key] for key in READ}
    except PARSE_ERRORS as error:
        raise AblationError(
            f"{file} is no record of a run ({error!r}). It was left in place; type folder=<another>"
        ) from error
