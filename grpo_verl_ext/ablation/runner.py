"""Run what is not finished yet, one training after the other; a failed one does not stop the others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from grpo_verl_ext.ablation.grid import GridRun
from grpo_verl_ext.ablation.settings import AblationError
from grpo_verl_ext.ablation.state import (
    State,
    failure_of,
    forget_failure,
    note_failure,
    read_record,
    state_of,
    write_record,
)
from grpo_verl_ext.files import alone_in
from grpo_verl_ext.runs.metrics import Metrics
from grpo_verl_ext.runs.process import ProcessFailedError
from grpo_verl_ext.runs.provenance import git_revision, versions


class Watcher(Protocol):
    """Who is told what happens."""

    def begin(self, run: GridRun) -> None:
        """An attempt at the run begins."""

    def metrics(self, run: GridRun, metrics: Metrics) -> None:
        """Its metrics so far; twice a second."""

    def end(self, run: GridRun) -> None:
        """It is finished, or has failed."""


def go(folder: Path, runs: Sequence[GridRun], watcher: Watcher, *, retry_failed: bool) -> list[GridRun]:
    """Start what is to do, and return the runs that have failed.

    Raises:
        AblationError: a run in the folder was begun otherwise, or another process works there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with alone_in(folder, AblationError):
        check_records(runs)
        for run in runs:
            if to_do(run, retry_failed=retry_failed):
                _attempt(run, watcher)
    return [run for run in runs if failure_of(run) is not None]


def to_do(run: GridRun, *, retry_failed: bool) -> bool:
    """Is it to be started?"""
    state = state_of(run)
    return state in (State.WAITING, State.BEGUN) or (state is State.FAILED and retry_failed)


def check_records(runs: Sequence[GridRun]) -> None:
    """Refuse to go on with a run that was begun with another command line.

    Raises:
        AblationError: its folder, and what differs.
    """
    for run in runs:
        record = read_record(run)
        if record is None:
            continue
        begun = {*record["overrides"], f"steps={record['steps']}"}
        changed = begun ^ {*run.training.overrides, f"steps={run.training.steps}"}
        if changed:
            raise AblationError(
                f"{run.training.folder} was begun with other overrides; they differ in {sorted(changed)}. "
                f"Type folder=<another>"
            )


def _attempt(run: GridRun, watcher: Watcher) -> None:
    forget_failure(run)
    write_record(
        run,
        {
            "variant": run.variant,
            "labels": list(run.labels),
            "seed": run.seed,
            "overrides": list(run.training.overrides),
            "steps": run.training.steps,
            "git_revision": git_revision(),
            "versions": versions(),
        },
    )
    watcher.begin(run)
    try:
        run.training.go(lambda metrics: watcher.metrics(run, metrics))
    except ProcessFailedError as error:
        note_failure(run, str(error))
    watcher.end(run)
