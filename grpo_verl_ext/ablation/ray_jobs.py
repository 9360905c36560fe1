"""Train runs as jobs of a Ray cluster through Ray's job API, which schedules them."""

from __future__ import annotations

import json
import os
import re
import shlex
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import TypeVar

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
    given = f"--ray-address is {address}"
    if not address.startswith(("http://", "https://")):
        raise AblationError(
            f"{given}; valid is the address of the cluster's dashboard. Type: --ray-address http://HOST:8265"
        )
    for name in ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS"):
        if os.environ.get(name, address) != address:
            other = f"{name} is {os.environ[name]}, which Ray's client prefers"
            raise AblationError(f"{given}, but {other}. Type: unset {name}")
    try:
        return JobSubmissionClient(address)
    except RayError as error:
        raise AblationError(
            f"{given}, which asks for a token ({error}). Put the cluster's token into "
            f"~/.ray/auth_token or RAY_AUTH_TOKEN, and type: export RAY_AUTH_MODE=token"
        ) from error
    except (*_NO_ANSWER, KeyError) as error:
        raise AblationError(
            f"{given}, where Ray's job API does not answer ({error}); valid is the dashboard of a Ray "
            f"installed as 'ray[default]'; on the head node: pip install 'ray[default]', then ray start "
            f"--head --dashboard-host 0.0.0.0. To see whether it answers type: ray job list --address "
            f"{address}"
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
        note, job = run.folder / NOTE, noted_job(run.folder)
        if job is not None and not self._ask(partial(self._knows, job)):
            self.say(f"{run.folder}: the cluster does not know job {job.submission_id}")
            note.unlink(missing_ok=True)
            job = None
            if run.has_ended(run.metrics()):
                return  # it finished unwatched
        job = job or self._submitted(run)
        log, fetched = run.folder / f"{job.attempt}.log", time.monotonic()
        self.say(f"{run.folder} is job {job.submission_id}. To stop it: {job.stop_command}")
        while True:
            info = self._ask(partial(self.client.get_job_info, job.submission_id))
            ended = info.status.is_terminal()
            if ended or time.monotonic() - fetched >= self.log_every:
                try:
                    write_whole(log, self.client.get_job_logs(job.submission_id))
                except _NO_ANSWER as error:
                    of_job = f"Ray did not return the log of {job.submission_id}"
                    self.say(f"{log} is incomplete; {of_job}: {error}")
                fetched = time.monotonic()
            on_metrics(run.metrics())
            if ended:
                break
            yield
        note.unlink(missing_ok=True)
        if info.status is not JobStatus.SUCCEEDED:
            reason = str(info.message).partition("\n")[0]
            raise ProcessFailedError(
                f"{last_lines(log)}\njob {job.submission_id} is {info.status.value}: {reason} Its whole "
                f"output is in {log}. Run the same command again with --retry-failed to resume"
            )
        run.check_ended(log)

    def _submitted(self, run: VerlRun) -> Job:
        run.folder.mkdir(parents=True, exist_ok=True)
        attempt = run.next_attempt()
        run.choose_checkpoint(attempt.name)
        attempt.with_suffix(".log").touch()
        readable = re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(attempt.resolve().parts[-4:]))
        name = f"{readable[-100:].lstrip('-.')}-{uuid.uuid4().hex[:8]}"
        job = Job(name, self.address, attempt.name)
        write_whole(run.folder / NOTE, json.dumps(asdict(job), indent=2) + "\n")
        environment = {METRICS_FILE: str(attempt.with_suffix(".jsonl").resolve())}
        command = shlex.join([_PYTHON, *TRAINER, *run.arguments(), *OF_AN_OWN_RAY, _OWN_QUEUE])

        def submit() -> None:
            if not self._knows(job):  # an earlier try may have arrived, and only its answer been lost
                env = {"env_vars": environment}
                self.client.submit_job(entrypoint=command, submission_id=name, runtime_env=env)

        self._ask(submit)
        return job

    def _knows(self, job: Job) -> bool:
        return any(each.submission_id == job.submission_id for each in self.client.list_jobs())

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
