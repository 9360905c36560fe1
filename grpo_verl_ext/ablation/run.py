"""Train the runs of a grid: one after the other on this machine, or as jobs of a Ray cluster."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from grpo_verl_ext.ablation.grid import AblationError, GridRun
from grpo_verl_ext.ablation.state import (
    FAILURE,
    NOTE,
    RUN_RECORD,
    Progress,
    State,
    has_steps,
    noted_job,
    read_record,
    status_of,
    write_record,
)
from grpo_verl_ext.runs.child_process import ProcessFailedError
from grpo_verl_ext.runs.metrics import CorruptMetricsError, Metrics
from grpo_verl_ext.runs.provenance import CHANGED, git_revision, machine, utc_now, versions
from grpo_verl_ext.runs.verl_run import VerlRun
from grpo_verl_ext.utils.documents import read_json
from grpo_verl_ext.utils.files import alone_in, in_one_sentence, write_whole


class Executor(Protocol):
    """Trains one run at a time or several at once."""

    @property
    def address(self) -> str | None:
        """Address of the cluster's dashboard; None: this machine."""

    @property
    def at_once(self) -> int:
        """Largest number of runs at once."""

    def train(self, run: VerlRun, on_metrics: Callable[[Metrics], None]) -> Iterator[None]:
        """Train to the end; yield now and then, so that other runs can proceed.

        Raises:
            ProcessFailedError: verl failed.
            AblationError: the connection to the cluster is lost.
        """


class _LocalExecutor:
    """Trains in a process of this machine, which ends with ours; other runs wait."""

    address = None
    at_once = 1

    def train(self, run: VerlRun, on_metrics: Callable[[Metrics], None]) -> Iterator[None]:
        run.go(on_metrics)
        yield from ()


_LOCAL = _LocalExecutor()


def executor_at(ray_address: str | None, jobs: int, say: Callable[[str], None]) -> Executor:
    """The cluster at the address; without an address, this machine.

    Raises:
        AblationError: no cluster answers at the address, or ``jobs`` > 1 without an address.
    """
    if ray_address is not None:
        from grpo_verl_ext.ablation.ray_jobs import RayExecutor, connected

        address = ray_address.rstrip("/")
        return RayExecutor(connected(address), address, jobs, say)
    if jobs > 1:
        raise AblationError(
            f"--jobs is {jobs}; without a cluster valid is 1, for each run has the machine to itself. "
            f"Type: --ray-address http://HOST:8265"
        )
    return _LOCAL


POLL_SECONDS = 1.0


@dataclass(frozen=True)
class _Work:
    """How each run is trained; see `go`."""

    watcher: Progress
    executor: Executor
    before_each: Callable[[GridRun], None]
    inputs_of: Callable[[GridRun], Mapping[str, str]]


def go(
    folder: Path,
    runs: Sequence[GridRun],
    watcher: Progress,
    *,
    retry_failed: bool,
    executor: Executor = _LOCAL,
    accepted: Callable[[], None] = lambda: None,
    before_each: Callable[[GridRun], None] = lambda _: None,
    inputs_of: Callable[[GridRun], Mapping[str, str]] = lambda _: {},
) -> list[GridRun]:
    """Train the runs that are to do, and return those that have failed.

    Args:
        accepted: called when nothing speaks against the runs, before the first one starts.
        before_each: called before each attempt, and may refuse it.
        inputs_of: SHA-256 of the model and the data of a run, for its record.

    Raises:
        AblationError: a run was begun with other overrides or may be running elsewhere, another process
            works in the folder, or the connection to the cluster is lost.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with alone_in(folder, AblationError):
        check_records(runs)
        _check_jobs([run.training for run in runs], executor.address)
        accepted()
        submitted = [run for run in runs if noted_job(run.training.folder)]
        left = [run for run in runs if run not in submitted]
        new = [run for run in left if status_of(run).is_to_do(retry_failed=retry_failed)]
        _train([*submitted, *new], _Work(watcher, executor, before_each, inputs_of))
    return [run for run in runs if status_of(run).state is State.FAILED]


def _check_jobs(runs: Sequence[VerlRun], address: str | None) -> None:
    """Refuse to train a run that a job on another cluster may be training.

    Args:
        address: of the cluster that is to train the runs; None: this machine.

    Raises:
        AblationError: names the job.
    """
    for run in runs:
        job = noted_job(run.folder)
        if job is not None and job.address != address:
            raise AblationError(
                f"{run.folder} was submitted to {job.address} as job {job.submission_id}, which may be "
                f"running. To keep watching it type --ray-address {job.address}; to abandon it: "
                f"{job.stop_command}, then rm '{run.folder / NOTE}'"
            )


def check_clean(run: GridRun | None = None) -> None:
    """Refuse to begin a run of a declared comparison from changed sources; its record could not say what ran.

    Args:
        run: if a cluster has it already, it is only watched.

    Raises:
        AblationError: says what to type.
    """
    revision = git_revision() or ""
    if not revision.endswith(CHANGED) or (run is not None and noted_job(run.training.folder)):
        return
    raise AblationError(
        f"the checkout of grpo_verl_ext differs from its commit {revision.removesuffix(CHANGED)[:12]}, and "
        f"no record could say what ran; valid for a declared comparison is a commit without changes. Commit "
        f"them, or type: git worktree add ../clean HEAD, and run it there"
    )


def check_records(runs: Sequence[GridRun]) -> None:
    """Refuse to resume a run that was begun with other overrides, or with a key's in another order.

    Raises:
        AblationError: names the run's folder and the overrides that differ.
    """
    for run in runs:
        record = read_record(run)
        if record is None:
            continue
        begun, now = [*record.overrides, f"steps={record.steps}"], [*run.training.overrides]
        now.append(f"steps={run.training.steps}")
        if changed := {*begun} ^ {*now}:
            raise AblationError(
                f"{run.training.folder} was begun with other overrides; they differ in {sorted(changed)}. "
                f"Type folder=<another>"
            )
        in_order = _by_key(now)
        reordered = [key for key, values in _by_key(begun).items() if values != in_order[key]]
        if reordered:
            raise AblationError(
                f"{run.training.folder} was begun with the overrides of {reordered[0]} in another order, of "
                f"which the last counts. Type folder=<another>"
            )


def _by_key(overrides: Sequence[str]) -> dict[str, list[str]]:
    values: dict[str, list[str]] = {}
    for override in overrides:
        values.setdefault(override.lstrip("+~").partition("=")[0], []).append(override)
    return values


def check_resumed(run: GridRun, inputs_of: Callable[[GridRun], Mapping[str, str]]) -> None:
    """Refuse to go on with a run of a declared comparison under another commit, other packages or other data.

    Two commits with changes are never known to be the same. A run without a step begins anew.

    Args:
        inputs_of: see `go`; called for a run that has begun alone, for it reads model and data whole.

    Raises:
        AblationError: names what differs from the run's record.
    """
    record = read_record(run)
    if record is None or noted_job(run.training.folder) or not (record.inputs and has_steps(run)):
        return
    now = _made_with(inputs_of(run))
    for name, words in _WORDS.items():
        was = getattr(record, name)
        if was != now[name] or str(was).endswith(CHANGED):
            raise AblationError(
                f"{run.training.folder} was begun with the {words} {was}, and now it is {now[name]}; "
                f"no record could say what ran. Go back to that, or type: mv {run.training.folder} <another>"
            )


_WORDS = {"git_revision": "commit", "versions": "versions", "inputs": "model and data of hashes"}


def _made_with(inputs: Mapping[str, str]) -> dict[str, Any]:
    """What `Record` has of this machine: commit, versions, model, data and processor."""
    made_with = {"git_revision": git_revision(), "versions": versions(), "inputs": dict(inputs)}
    return {**made_with, "machine": machine()}


def _train(runs: Sequence[GridRun], work: _Work) -> None:
    waiting, at_work = deque(runs), list[Iterator[None]]()
    while waiting or at_work:
        while waiting and len(at_work) < work.executor.at_once:
            work.before_each(waiting[0])
            attempt = _attempt(waiting.popleft(), work)
            if next(attempt, "over") != "over":  # the run's folder is there before the next one is looked at
                at_work.append(attempt)
        at_work = [attempt for attempt in at_work if next(attempt, "over") != "over"]
        if at_work:
            time.sleep(POLL_SECONDS)


def _attempt(run: GridRun, work: _Work) -> Iterator[None]:
    """Train one run; neither its failure nor a file that cannot be written ends the others."""
    try:
        yield from _noted(run, work)
    except OSError as error:
        work.watcher.trouble(run, in_one_sentence(error, "folder=<another>") or str(error))
    work.watcher.end(run)


def _noted(run: GridRun, work: _Work) -> Iterator[None]:
    """Train one run, and note in its folder what it is made with, when it ended, and why it failed."""
    failure, record = run.training.folder / FAILURE, run.training.folder / RUN_RECORD
    failure.unlink(missing_ok=True)
    # a cluster has packages, files and processors of its own
    here = work.executor.address is None
    made_with = _made_with(work.inputs_of(run)) if here else {"git_revision": None, "versions": {}}
    content = {"variant": run.variant, "seed": run.seed, "overrides": list(run.training.overrides)}
    write_record(run, {**content, "steps": run.training.steps, **made_with, "began": utc_now()})
    work.watcher.begin(run)
    try:
        yield from work.executor.train(run.training, lambda metrics: work.watcher.metrics(run, metrics))
        ended = {**read_json(record, dict[str, object]), "ended": utc_now()}
        write_whole(record, json.dumps(ended, indent=2) + "\n")
    except ProcessFailedError as error:
        try:
            write_whole(failure, f"{error}\n")
        except OSError:
            work.watcher.trouble(run, str(error))
            raise
    except CorruptMetricsError:  # `status_of` names the file, and the other runs go on
        pass
