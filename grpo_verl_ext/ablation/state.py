"""The state of a run, read from its files alone, and the table of runs that shows it during a training."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TypeVar

from rich.live import Live
from rich.text import Text

from grpo_verl_ext.ablation.grid import AblationError, GridRun
from grpo_verl_ext.runs.metrics import CorruptMetricsError, Metrics
from grpo_verl_ext.utils.documents import Document, DocumentError, read_json
from grpo_verl_ext.utils.files import write_whole

FAILURE = "failed.txt"
RUN_RECORD = "run.json"
NOTE = "job.json"
STEP_SECONDS = "timing_s/step"
_Kind = TypeVar("_Kind")


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
class Record:
    """What a run was begun with."""

    overrides: list[str]
    steps: int
    git_revision: str | None
    versions: dict[str, str]
    inputs: dict[str, str] = field(default_factory=dict)
    """Key of verl's configuration → SHA-256 of the model or the data that it names."""
    machine: str | None = None
    """Processor and threads; None: a cluster's."""
    began: str | None = None
    """When the first attempt began, in UTC."""
    ended: str | None = None
    """When the run was finished, in UTC."""


@dataclass(frozen=True)
class Job(Document):
    """A submitted Ray job whose end has not been seen."""

    submission_id: str
    address: str
    """Address of the cluster's dashboard."""
    attempt: str
    """Name of the attempt's files, without a suffix."""

    @property
    def stop_command(self) -> str:
        """Command that stops the job."""
        return f"ray job stop {self.submission_id} --address {self.address}"


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

    @property
    def step_seconds(self) -> list[float]:
        """Seconds of each step."""
        return [values[STEP_SECONDS] for values in self.metrics.values() if STEP_SECONDS in values]

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
        file = run.training.folder / FAILURE
        if file.exists():
            reason = file.read_text(encoding="utf-8", errors="replace")
            return RunStatus(run, State.FAILED, metrics, reason)
    except CorruptMetricsError as error:
        return RunStatus(run, State.UNREADABLE, {}, str(error))
    except OSError as error:
        why = f"{error.filename} cannot be read ({error.strerror}). It was left in place; move it away"
        return RunStatus(run, State.UNREADABLE, metrics, why)
    return RunStatus(run, State.BEGUN if run.training.folder.is_dir() else State.WAITING, metrics)


def has_steps(run: GridRun) -> bool:
    """Whether an attempt has logged something, if only what cannot be read."""
    try:
        return bool(run.training.metrics())
    except CorruptMetricsError:
        return True


def write_record(run: GridRun, content: dict[str, object]) -> None:
    """Write what `Record` has into the run's folder, unless an earlier attempt did, and finished a step."""
    file = run.training.folder / RUN_RECORD
    if not file.exists() or not has_steps(run):
        run.training.folder.mkdir(parents=True, exist_ok=True)
        write_whole(file, json.dumps(content, indent=2) + "\n")


def read_record(run: GridRun) -> Record | None:
    """The `Record` that `write_record` wrote; None if the run has not begun."""
    return _read(run.training.folder / RUN_RECORD, Record, "the record of a run", "type folder=<another>")


def noted_job(folder: Path) -> Job | None:
    """The run's job whose end has not been seen; None if there is none."""
    then = "check with `ray job list` whether the run's job is there, and move the file away"
    return _read(folder / NOTE, Job, "the note of a job", then)


def _read(file: Path, kind: type[_Kind], what: str, then: str) -> _Kind | None:
    try:
        return read_json(file, kind) if file.exists() else None
    except (DocumentError, OSError) as error:
        raise AblationError(f"{file} is not {what} ({error}). It was left in place; {then}") from error


class Progress:
    """Prints how runs begin and end, and on a terminal a line with the steps that are trained now."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._steps: dict[str, str] = {}

    def begin(self, run: GridRun) -> None:
        """Print a line, which also stays where the output is not a terminal."""
        self._live.console.print(f"{time.strftime('%H:%M:%S')} {run.name} begins")

    def metrics(self, run: GridRun, metrics: Metrics) -> None:
        """Show the last step; called about once a second."""
        self._steps[run.name] = f"{run.name}, step {max(metrics, default=0)} of {run.training.steps}"
        self._live.update(Text(f"now {'; '.join(self._steps.values())}"))

    def end(self, run: GridRun, reason: str | None) -> None:
        """Print how the run ended, and what no file of it could take."""
        if reason is not None:
            self._live.console.print(f"{run.name}: {reason}", style="red")
        self._steps.pop(run.name, None)
        self._live.console.print(f"{time.strftime('%H:%M:%S')} {run.name}: {status_of(run).state.value}")
