"""Train runs as jobs of a Ray cluster through Ray's job API, which schedules them."""

from __future__ import annotations

import json
import os
import re
import shlex
import time
import uuid
from collections.abc import Callable, Generator, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from ray.exceptions import RayError
from ray.job_submission import JobStatus, JobSubmissionClient

from grpo_verl_ext.ablation.grid import AblationError
from grpo_verl_ext.ablation.state import NOTE, Job, noted_job
from grpo_verl_ext.runs.child_process import ProcessFailedError, last_lines
from grpo_verl_ext.runs.metrics import Metrics
from grpo_verl_ext.runs.verl_run import METRICS_FILE, TRAINER, VerlRun
from grpo_verl_ext.utils.files import write_whole
from grpo_verl_ext.utils.which_ray import OF_AN_OWN_RAY

_Answer = TypeVar("_Answer")

_NO_ANSWER = (OSError, RuntimeError, RayError)
"""Exceptions of Ray's client: no connection, a status other than 200, a missing token."""
_PYTHON = "python"
"""Found in PATH by the head node's Ray; our own interpreter may not exist there."""
_OWN_QUEUE = "++algorithm.grpo_ext.own_queue=true"
"""Override of a submitted run: other trainings may share the cluster."""


def connected(address: str) -> JobSubmissionClient:
    """Connect to a cluster's job API.

    Raises:
        AblationError: it does not answer, or the environment makes Ray's client use another address.
    """
    if not address.startswith(("http://", "https://")):
        raise AblationError(
            f"--ray-address is {address}; valid is the address of the cluster's dashboard. "
            f"Type: --ray-address http://HOST:8265"
        )
    for name in ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS"):
        if os.environ.get(name, address) != address:
            raise AblationError(
                f"--ray-address is {address}, but {name} is {os.environ[name]}, which Ray's client prefers. "
                f"Type: unset {name}"
            )
    try:
        return JobSubmissionClient(address)
    except RayError as error:
        raise AblationError(
            f"--ray-address is {address}, which asks for a token ({error}). Put the cluster's token into "
            f"~/.ray/auth_token or RAY_AUTH_TOKEN, and type: export RAY_AUTH_MODE=token"
        ) from error
    except (*_NO_ANSWER, KeyError) as error:
        raise AblationError(
            f"--ray-address is {address}, where Ray's job API does not answer ({error}); valid is the "
            f"dashboard of a Ray installed as 'ray[default]'; on the head node: pip install 'ray[default]', "
            f"then ray start --head --dashboard-host 0.0.0.0. To see whether it answers type: "
            f"ray job list --address {address}"
        ) from error


@dataclass
class RayExecutor:
    """An `Executor` that submits runs to a Ray cluster; their jobs continue when this process ends."""

    client: JobSubmissionClient
    address: str
    at_once: int
    say: Callable[[str], None]
    patience: float = 600.0
    """Seconds without an answer after which watching ends."""
    pause: float = 5.0
    """Seconds between two tries."""
    log_every: float = 30.0
    """Seconds between two fetches of a running job's log."""

    def train(self, run: VerlRun, on_metrics: Callable[[Metrics], None]) -> Iterator[None]:
        """Submit the run, or find its job again, and watch it to the end.

        Raises:
            ProcessFailedError: the job failed or was stopped.
            AblationError: the cluster no longer answers.
        """
        job = self._found_again(run)
        if job is None and run.has_ended(run.metrics()):
            return  # it finished unwatched, and the cluster has forgotten its job
        job = job or self._submitted(run)
        log = run.folder / f"{job.attempt}.log"
        self.say(f"{run.folder} is job {job.submission_id}. To stop it: {job.stop_command}")
        info = yield from self._watched(job, log, lambda: on_metrics(run.metrics()))
        (run.folder / NOTE).unlink(missing_ok=True)
        if info.status is not JobStatus.SUCCEEDED:
            reason = str(info.message).partition("\n")[0]
            raise ProcessFailedError(
                f"{last_lines(log)}\njob {job.submission_id} is {info.status.value}: {reason} Its whole "
                f"output is in {log}. Run the same command again with --retry-failed to resume"
            )
        run.check_ended(log)

    def _watched(self, job: Job, log: Path, on_look: Callable[[], None]) -> Generator[None, None, Any]:
        """Wait for the job's end and return Ray's information about it; fetch its log every `log_every` s."""
        fetched = time.monotonic()
        while True:
            info = self._ask(lambda: self.client.get_job_info(job.submission_id))
            ended = info.status.is_terminal()
            if ended or time.monotonic() - fetched >= self.log_every:
                self._fetch_log(job, log)
                fetched = time.monotonic()
            on_look()
            if ended:
                return info
            yield

    def _found_again(self, run: VerlRun) -> Job | None:
        job = noted_job(run.folder)
        if job is None or self._ask(lambda: self._knows(job)):
            return job
        self.say(f"{run.folder}: the cluster does not know job {job.submission_id}")
        (run.folder / NOTE).unlink(missing_ok=True)
        return None

    def _submitted(self, run: VerlRun) -> Job:
        run.folder.mkdir(parents=True, exist_ok=True)
        attempt = run.next_attempt()
        run.choose_checkpoint(attempt.name)
        attempt.with_suffix(".log").touch()
        job = Job(_submission_id(attempt), self.address, attempt.name)
        write_whole(run.folder / NOTE, json.dumps(asdict(job), indent=2) + "\n")
        environment = {METRICS_FILE: str(attempt.with_suffix(".jsonl").resolve())}

        def submit() -> None:
            if not self._knows(job):  # an earlier try may have arrived, and only its answer been lost
                self.client.submit_job(
                    entrypoint=shlex.join([_PYTHON, *TRAINER, *run.arguments(), *OF_AN_OWN_RAY, _OWN_QUEUE]),
                    submission_id=job.submission_id,
                    runtime_env={"env_vars": environment},
                )

        self._ask(submit)
        return job

    def _knows(self, job: Job) -> bool:
        return any(each.submission_id == job.submission_id for each in self.client.list_jobs())

    def _fetch_log(self, job: Job, log: Path) -> None:
        try:
            write_whole(log, self.client.get_job_logs(job.submission_id))
        except _NO_ANSWER as error:
            self.say(f"{log} is incomplete; Ray did not return the log of {job.submission_id}: {error}")

    def _ask(self, question: Callable[[], _Answer]) -> _Answer:
        """Repeat the question until there is an answer or `patience` runs out."""
        first: float | None = None
        while True:
            try:
                answer = question()
            except _NO_ANSWER as error:
                if first is None:
                    first = time.monotonic()
                    self.say(f"no answer from {self.address} ({error}); asking for {self.patience:.0f} s")
                elif time.monotonic() - first > self.patience:
                    raise AblationError(
                        f"no answer from {self.address} for {self.patience:.0f} s ({error}). Submitted "
                        f"jobs continue; when the cluster answers, run the same command again to watch them"
                    ) from error
                time.sleep(self.pause)
            else:
                if first is not None:
                    self.say(f"{self.address} answers again")
                return answer


def _submission_id(attempt: Path) -> str:
    """Grid, variant, seed and attempt, made unique by a random suffix."""
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(attempt.resolve().parts[-4:]))
    return f"{readable[-100:].lstrip('-.')}-{uuid.uuid4().hex[:8]}"
