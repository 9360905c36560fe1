"""Train runs as jobs of a Ray cluster through Ray's job API, which schedules them."""

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

from grpo_verl_ext.ablation.grid import NOTE, AblationError, Job
from grpo_verl_ext.runs.child_process import ProcessFailedError, last_lines
from grpo_verl_ext.runs.verl_run import METRICS_FILE, TRAINER, Metrics, VerlRun
from grpo_verl_ext.utils.files import write_whole
from grpo_verl_ext.utils.which_ray import OF_AN_OWN_RAY

_Answer = TypeVar("_Answer")

_NO_ANSWER = (OSError, RuntimeError, RayError)
"""Exceptions of Ray's client: no connection, a status other than 200, a missing token."""


@dataclass
class RayCluster:
    """Submits runs to a Ray cluster; their jobs continue when this process ends."""

    client: JobSubmissionClient
    address: str
    at_once: int
    say: Callable[[str], None]
    patience: float = 600.0
    """Seconds without an answer after which watching ends."""
    pause: float = 5.0
    """Seconds between two tries."""

    def train(self, run: VerlRun, job: Job | None, on_metrics: Callable[[Metrics], None]) -> Iterator[None]:
        """Submit the run, or find its noted job again, and watch it to the end; yield while it runs."""
        note = run.folder / NOTE
        known = self._ask(self.client.list_jobs) if job is not None else ()
        if job is not None and job.submission_id not in {each.submission_id for each in known}:
            self.say(f"{run.folder}: the cluster does not know job {job.submission_id}")
            note.unlink(missing_ok=True)
            job = None
            if run.has_ended(run.metrics()):
                return  # it finished unwatched
        if job is None:
            run.folder.mkdir(parents=True, exist_ok=True)
            attempt = run.next_attempt()
            run.choose_checkpoint(attempt.name)
            attempt.with_suffix(".log").touch()
            readable = re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(attempt.resolve().parts[-4:]))
            name = f"{readable[-100:].lstrip('-.')}-{uuid.uuid4().hex[:8]}"
            job = Job(name, self.address, attempt.name)
            write_whole(note, json.dumps(asdict(job), indent=2) + "\n")
            env = {"env_vars": {METRICS_FILE: str(attempt.with_suffix(".jsonl").resolve())}}
            # python is that of the head node's PATH, for ours may not exist there
            own_queue = "++algorithm.grpo_ext.own_queue=true"  # other trainings may share the cluster
            command = shlex.join(["python", *TRAINER, *run.arguments(), *OF_AN_OWN_RAY, own_queue])
            submit = partial(self.client.submit_job, entrypoint=command, submission_id=name, runtime_env=env)
            # an earlier try may have arrived, and only its answer been lost
            self._ask(lambda: name in {each.submission_id for each in self.client.list_jobs()} or submit())
        name, log = job.submission_id, run.folder / f"{job.attempt}.log"
        stop = f"ray job stop {name} --address {job.address}"
        self.say(f"{run.folder} is job {name}, which goes on when this command ends. To stop it: {stop}")
        question = partial(self.client.get_job_info, name)
        while not (info := self._ask(question)).status.is_terminal():
            on_metrics(run.metrics())
            yield
        try:
            write_whole(log, self.client.get_job_logs(name))
        except _NO_ANSWER as error:
            self.say(f"{log} is empty; Ray did not return the log of {name}: {error}")
        on_metrics(run.metrics())
        note.unlink(missing_ok=True)
        if info.status is not JobStatus.SUCCEEDED:
            reason = str(info.message).partition("\n")[0]
            said = f"{last_lines(log)}\njob {name} is {info.status.value}: {reason}"
            raise ProcessFailedError(f"{said} Its whole output is in {log}")
        run.check_ended(log)

    def _ask(self, question: Callable[[], _Answer]) -> _Answer:
        """Repeat the question until there is an answer or `patience` runs out."""
        first: float | None = None
        while True:
            try:
                return question()
            except _NO_ANSWER as error:
                if first is None:
                    first = time.monotonic()
                    self.say(f"no answer from {self.address} ({error}); asking for {self.patience:.0f} s")
                elif time.monotonic() - first > self.patience:
                    said = f"no answer from {self.address} for {self.patience:.0f} s ({error})"
                    then = "Submitted jobs continue; the same command watches them again"
                    raise AblationError(f"{said}. {then}") from error
                time.sleep(self.pause)


def connected(address: str, at_once: int, say: Callable[[str], None]) -> RayCluster:
    """Connect to a cluster's job API, unless the environment makes Ray's client use another address."""
    given = f"--ray-address is {address}"
    for name in ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS"):
        if (other := os.environ.get(name, address)) != address:
            why = f"{name} is {other}, which Ray's client prefers"
            raise AblationError(f"{given}, but {why}. Type: unset {name}")
    try:
        if not address.startswith(("http://", "https://")):
            raise OSError("it does not begin with http://")
        return RayCluster(JobSubmissionClient(address), address, at_once, say)
    except (*_NO_ANSWER, KeyError) as error:
        valid = "http://HOST:8265, of a Ray installed as 'ray[default]', with --dashboard-host 0.0.0.0"
        said = f"{given}, where Ray's job API does not answer ({error}); valid is {valid}"
        raise AblationError(f"{said}. To ask it, type: ray job list --address {address}") from error
