"""Where runs are trained: here, one after the other, or as jobs of a Ray cluster."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from grpo_verl_ext.ablation.grid import AblationError, GridRun
from grpo_verl_ext.ablation.ray_jobs import check_jobs, noted_job
from grpo_verl_ext.ablation.run_state import (
    failure_of,
    forget_failure,
    note_failure,
    read_record,
    standing_of,
    write_record,
)
from grpo_verl_ext.runs.metrics import Metrics
from grpo_verl_ext.runs.process import ProcessFailedError
from grpo_verl_ext.runs.provenance import git_revision, versions
from grpo_verl_ext.runs.verl_run import VerlRun
from grpo_verl_ext.utils.files import alone_in


class Place(Protocol):
    """What the runner has to know of it."""

    @property
    def address(self) -> str | None:
        """Of the cluster's dashboard; None is here."""

    @property
    def at_once(self) -> int:
        """So many runs."""

    def train(self, run: VerlRun, on_metrics: Callable[[Metrics], None]) -> Iterator[None]:
        """Train to the end, yielding whenever others may have their turn.

        Raises:
            ProcessFailedError: verl failed.
            AblationError: the place is lost.
        """


class _Here:
    address = None
    at_once = 1

    def train(self, run: VerlRun, on_metrics: Callable[[Metrics], None]) -> Iterator[None]:
        run.go(on_metrics)
        yield from ()


HERE = _Here()
"""A process of this machine, which ends with us."""


def place_at(ray_address: str | None, jobs: int, say: Callable[[str], None]) -> Place:
    """The cluster, if an address is given.

    Raises:
        AblationError: there is none at the address, or several jobs are to run without one.
    """
    if ray_address is not None:
        from grpo_verl_ext.ablation.ray_jobs import Cluster, connected

        address = ray_address.rstrip("/")
        return Cluster(connected(address), address, jobs, say)
    if jobs > 1:
        raise AblationError(
            f"--jobs is {jobs}; without a cluster valid is 1, for each run has the machine to itself. "
            f"Type: --ray-address http://HOST:8265"
        )
    return HERE


POLL_SECONDS = 1.0


class Watcher(Protocol):
    """Who is told what happens."""

    def begin(self, run: GridRun) -> None:
        """An attempt at the run begins."""

    def metrics(self, run: GridRun, metrics: Metrics) -> None:
        """Its metrics so far; every second or so."""

    def end(self, run: GridRun) -> None:
        """It is finished, or has failed."""


def go(
    folder: Path, runs: Sequence[GridRun], watcher: Watcher, *, retry_failed: bool, place: Place = HERE
) -> list[GridRun]:
    """Start what is to do, and return the runs that have failed.

    Raises:
        AblationError: a run in the folder was begun otherwise or may be running elsewhere, another process
            works there, or the place is lost.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with alone_in(folder, AblationError):
        check_records(runs)
        check_jobs([run.training for run in runs], place.address)
        submitted = [run for run in runs if noted_job(run.training.folder)]
        left = [run for run in runs if run not in submitted]
        new = [run for run in left if standing_of(run).is_to_do(retry_failed=retry_failed)]
        _train([*submitted, *new], watcher, place)
    return [run for run in runs if failure_of(run) is not None]


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


def _train(runs: Sequence[GridRun], watcher: Watcher, place: Place) -> None:
    waiting, at_work = deque(runs), list[Iterator[None]]()
    while waiting or at_work:
        while waiting and len(at_work) < place.at_once:
            at_work.append(_attempt(waiting.popleft(), watcher, place))
        at_work = [attempt for attempt in at_work if next(attempt, "over") != "over"]
        if at_work:
            time.sleep(POLL_SECONDS)


def _attempt(run: GridRun, watcher: Watcher, place: Place) -> Iterator[None]:
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
        yield from place.train(run.training, lambda metrics: watcher.metrics(run, metrics))
    except ProcessFailedError as error:
        note_failure(run, str(error))
    watcher.end(run)
