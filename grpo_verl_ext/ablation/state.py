"""How far a run is, from its files alone."""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path

from grpo_verl_ext.ablation.grid import GridRun
from grpo_verl_ext.files import write_whole

FAILURE = "failed.txt"
RECORD = "run.json"


class State(str, Enum):
    """What can be said of a run."""

    WAITING = "waiting"
    BEGUN = "begun"
    """There are attempts; the next one goes on from the last checkpoint."""
    FAILED = "failed"
    FINISHED = "finished"


def state_of(run: GridRun) -> State:
    """Finished runs have logged their last step, checkpoints or not; failed ones have said why."""
    if run.training.is_logged():
        return State.FINISHED
    if failure_of(run) is not None:
        return State.FAILED
    return State.BEGUN if run.training.folder.is_dir() else State.WAITING


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


def record_file(folder: Path) -> Path:
    """Where `write_record` writes in a run's folder."""
    return folder / RECORD
