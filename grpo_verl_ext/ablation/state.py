"""The state of a run, read from its files alone, and the table of runs that shows it during a training."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from statistics import mean

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from grpo_verl_ext.ablation.grid import AblationError, GridRun
from grpo_verl_ext.runs.metrics import CorruptMetricsError, Metrics
from grpo_verl_ext.utils.documents import Document, DocumentError, read_json
from grpo_verl_ext.utils.files import write_whole

FAILURE = "failed.txt"
RUN_RECORD = "run.json"
NOTE = "job.json"
STEP_SECONDS = "timing_s/step"


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
        failure = file.read_text(encoding="utf-8", errors="replace") if file.exists() else None
    except CorruptMetricsError as error:
        return RunStatus(run, State.UNREADABLE, {}, str(error))
    except OSError as error:
        why = f"{error.filename} cannot be read ({error.strerror}). It was left in place; move it away"
        return RunStatus(run, State.UNREADABLE, metrics, why)
    if failure is not None:
        return RunStatus(run, State.FAILED, metrics, failure)
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
    """The `Record` that `write_record` wrote; None if the run has not begun.

    Raises:
        AblationError: the file is not a record. It is left in place.
    """
    file = run.training.folder / RUN_RECORD
    try:
        return read_json(file, Record) if file.exists() else None
    except (DocumentError, OSError) as error:
        raise AblationError(
            f"{file} is not the record of a run ({error}). It was left in place; type folder=<another>"
        ) from error


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


def noted_job(folder: Path) -> Job | None:
    """The run's job whose end has not been seen; None if there is none.

    Raises:
        AblationError: the note cannot be read; it is left in place.
    """
    file = folder / NOTE
    try:
        return read_json(file, Job) if file.exists() else None
    except (DocumentError, OSError) as error:
        raise AblationError(
            f"{file} is not the note of a job ({error}). It was left in place; check with "
            f"`ray job list` whether the run's job is there, and move the file away"
        ) from error


def runs_table(statuses: Sequence[RunStatus], metric: str) -> Table:
    """A line for each run: its state, last step, last value of the metric, and seconds of a step."""
    shown = Table(title="runs")
    for name in ("variant", "seed", "state", "step", metric, "s a step"):
        shown.add_column(name, justify="left" if name == "variant" else "right", overflow="fold")
    for status in statuses:
        values = [values[metric] for _, values in sorted(status.metrics.items()) if metric in values]
        seconds = status.step_seconds
        shown.add_row(
            status.run.variant,
            str(status.run.seed),
            status.state.value,
            f"{status.step}/{status.run.training.steps}",
            f"{values[-1]:.3f}" if values else "–",
            f"{mean(seconds):.1f}" if seconds else "–",
        )
    return shown


def estimate(statuses: Sequence[RunStatus], left: Sequence[RunStatus], at_once: int = 1) -> str:
    """Minutes left, from the steps measured so far; without the start of Ray, actor and rollout."""
    seconds = [second for status in statuses for second in status.step_seconds]
    if not seconds:
        return "time unknown before the first step"
    steps = sum(status.run.training.steps - status.step for status in left)
    return f"about {steps * mean(seconds) / 60 / at_once:.0f} min of steps"


@dataclass
class Progress:
    """Redraws the table when something happens."""

    live: Live
    runs: Sequence[GridRun]
    metric: str
    at_once: int
    _steps: dict[str, int] = field(default_factory=dict)
    """Last step of each run that is being trained, by its name."""
    _statuses: dict[str, RunStatus] = field(default_factory=dict)
    """Status of each run, by its name; the files of a run are read when it begins and ends."""

    def begin(self, run: GridRun) -> None:
        """Print a line, which also stays where the output is not a terminal."""
        self.live.console.print(f"{time.strftime('%H:%M:%S')} {run.name} begins")
        self._statuses = {each.name: status_of(each) for each in self.runs}
        self.metrics(run, self._statuses[run.name].metrics)

    def metrics(self, run: GridRun, metrics: Metrics) -> None:
        """Redraw the table if a step was logged; called about once a second."""
        if self._steps.get(run.name) == max(metrics, default=0):
            return
        self._steps[run.name] = max(metrics, default=0)
        self._statuses[run.name] = replace(self._statuses[run.name], metrics=metrics)
        statuses = list(self._statuses.values())
        left = [status for status in statuses if status.is_to_do(retry_failed=False)]
        now = "; ".join(f"{name}, step {step}" for name, step in self._steps.items())
        line = Text(f"now {now}; {estimate(statuses, left, self.at_once)}")
        self.live.update(Group(runs_table(statuses, self.metric), line))

    def trouble(self, run: GridRun, reason: str) -> None:
        """Print what no file of the run could take: why it failed, or that the file cannot be written."""
        self.live.console.print(f"{run.name}: {reason}", style="red")

    def end(self, run: GridRun) -> None:
        """Print how the run ended."""
        self._steps.pop(run.name, None)  # one whose folder cannot be made has not begun
        self._statuses[run.name] = status = status_of(run)
        self.live.console.print(f"{time.strftime('%H:%M:%S')} {run.name}: {status.state.value}")
