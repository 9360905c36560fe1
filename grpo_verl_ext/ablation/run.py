"""Train the runs of a grid: one after the other on this machine, or as jobs of a Ray cluster."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from grpo_verl_ext.runs.metrics import CorruptMetricsError
from grpo_verl_ext.runs.provenance import CHANGED, git_revision, machine, utc_now, versions
from grpo_verl_ext.utils.documents import read_json
from grpo_verl_ext.utils.files import alone_in, in_one_sentence, write_whole
from grpo_verl_ext.utils.keys import key_of

if TYPE_CHECKING:
    from grpo_verl_ext.ablation.ray_jobs import RayCluster

POLL_SECONDS = 1.0
_InputsOf = Callable[[GridRun], Mapping[str, str]]


@dataclass(frozen=True)
class _Work:
    """How each run is trained; see `go`."""

    watcher: Progress
    cluster: RayCluster | None
    before_each: Callable[[GridRun], None]
    inputs_of: _InputsOf


def go(
    folder: Path,
    runs: Sequence[GridRun],
    watcher: Progress,
    *,
    retry_failed: bool,
    cluster: RayCluster | None = None,
    accepted: Callable[[], None] = lambda: None,
    before_each: Callable[[GridRun], None] = lambda _: None,
    inputs_of: _InputsOf = lambda _: {},
) -> list[GridRun]:
    """Train the runs that are to do, and return those that have failed.

    Args:
        cluster: None: on this machine, one after the other.
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
        jobs = {run.name: noted_job(run.training.folder) for run in runs}
        for run in runs:
            job = jobs[run.name]
            if job is not None and (cluster is None or job.address != cluster.address):
                raise AblationError(
                    f"{run.training.folder} was submitted to {job.address} as job {job.submission_id}, which "
                    f"may be running. To keep watching it type --ray-address {job.address}; to abandon it: "
                    f"{job.stop_command}, then rm '{run.training.folder / NOTE}'"
                )
        accepted()
        submitted = [run for run in runs if jobs[run.name]]
        new = [run for run in runs if not jobs[run.name]]
        new = [run for run in new if status_of(run).is_to_do(retry_failed=retry_failed)]
        _train([*submitted, *new], _Work(watcher, cluster, before_each, inputs_of))
    return [run for run in runs if status_of(run).state is State.FAILED]


def check_clean(run: GridRun | None = None) -> None:
    """Refuse to begin a run of a declared comparison from changed sources; its record could not say what ran.

    A run that a cluster has already is only watched.
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
    """Refuse to resume a run that was begun with other overrides, or with a key's in another order."""
    for run in runs:
        record = read_record(run)
        if record is None:
            continue
        begun, now = (
            _by_key(record.overrides, record.steps),
            _by_key(run.training.overrides, run.training.steps),
        )
        if begun != now:
            keys = sorted(key for key in begun.keys() | now.keys() if begun.get(key) != now.get(key))
            was, is_now = ({key: values.get(key) for key in keys} for values in (begun, now))
            raise AblationError(
                f"{run.training.folder} was begun with other overrides: {was}, and now it is {is_now}. "
                f"Type folder=<another>"
            )


def _by_key(overrides: Sequence[str], steps: int) -> dict[str, list[str]]:
    """Key → its overrides in their order, of which the last counts."""
    values: dict[str, list[str]] = {"steps": [str(steps)]}
    for override in overrides:
        values.setdefault(key_of(override), []).append(override)
    return values


def check_resumed(run: GridRun, inputs_of: _InputsOf) -> None:
    """Refuse to go on with a run of a declared comparison under another commit, other packages or other data.

    Two commits with changes are never known to be the same. A run without a step begins anew.

    Args:
        inputs_of: see `go`; called for a run that has begun alone, for it reads model and data whole.
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
    now = {"git_revision": git_revision(), "versions": versions(), "machine": machine()}
    return {**now, "inputs": dict(inputs)}


def _train(runs: Sequence[GridRun], work: _Work) -> None:
    waiting, at_work = deque(runs), list[Iterator[None]]()
    while waiting or at_work:
        while waiting and len(at_work) < (work.cluster.at_once if work.cluster else 1):
            work.before_each(waiting[0])
            attempt = _attempt(waiting.popleft(), work)
            if next(attempt, "over") != "over":  # the run's folder is there before the next one is looked at
                at_work.append(attempt)
        at_work = [attempt for attempt in at_work if next(attempt, "over") != "over"]
        if at_work:
            time.sleep(POLL_SECONDS)


def _attempt(run: GridRun, work: _Work) -> Iterator[None]:
    """Train one run, and note in its folder what it is made with, when it ended, and why it failed.

    Neither its failure nor a file that cannot be written ends the others.
    """
    failure, file, reason = run.training.folder / FAILURE, run.training.folder / RUN_RECORD, None
    try:
        failure.unlink(missing_ok=True)
        # a cluster has packages, files and processors of its own
        made_with = (
            {"git_revision": None, "versions": {}} if work.cluster else _made_with(work.inputs_of(run))
        )
        content = {"variant": run.variant, "seed": run.seed, "overrides": list(run.training.overrides)}
        write_record(run, {**content, "steps": run.training.steps, **made_with, "began": utc_now()})
        work.watcher.begin(run)
        try:
            if work.cluster is None:
                run.training.go(lambda metrics: work.watcher.metrics(run, metrics))
            else:
                yield from work.cluster.train(run.training, lambda now: work.watcher.metrics(run, now))
            ended = {**read_json(file, dict[str, object]), "ended": utc_now()}
            write_whole(file, json.dumps(ended, indent=2) + "\n")
        except ProcessFailedError as error:
            reason = str(error)  # printed where the file cannot be written
            write_whole(failure, f"{error}\n")
            reason = None
        except CorruptMetricsError:  # `status_of` names the file, and the other runs go on
            pass
    except OSError as error:
        sentence = in_one_sentence(error, "folder=<another>") or str(error)
        reason = sentence if reason is None else f"{reason}\n{sentence}"
    work.watcher.end(run, reason)
