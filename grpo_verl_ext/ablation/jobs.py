"""The job that trains a run on a cluster, noted in the run's folder until its end is known."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from grpo_verl_ext.ablation.settings import AblationError
from grpo_verl_ext.runs.verl_run import VerlRun
from grpo_verl_ext.utils.files import write_whole
from grpo_verl_ext.utils.typed_json import SPOILED, made

NOTE = "job.json"


@dataclass(frozen=True)
class Job:
    """A job of Ray's that may be pending or running."""

    submission_id: str
    address: str
    """Of the cluster's dashboard."""
    attempt: str
    """Name of the attempt's files, without a suffix."""

    @property
    def stop_command(self) -> str:
        """What to type."""
        return f"ray job stop {self.submission_id} --address {self.address}"


def note_job(folder: Path, job: Job) -> None:
    """Before it is submitted, so that no job can be lost."""
    write_whole(folder / NOTE, json.dumps(asdict(job), indent=2) + "\n")


def noted_job(folder: Path) -> Job | None:
    """The job whose end is not known.

    Raises:
        AblationError: the note cannot be read; it is left in place.
    """
    file = folder / NOTE
    if not file.exists():
        return None
    try:
        return made(Job, json.loads(file.read_bytes()))
    except SPOILED as error:
        raise AblationError(
            f"{file} is no note of a job ({error!r}). It was left in place; see with `ray job list` whether "
            f"the run's job is there, and move the file away"
        ) from error


def forget_job(folder: Path) -> None:
    """It has ended."""
    (folder / NOTE).unlink(missing_ok=True)


def check_jobs(runs: Sequence[VerlRun], address: str | None) -> None:
    """Refuse to train a run that another place may be training.

    Raises:
        AblationError: its job.
    """
    for run in runs:
        job = noted_job(run.folder)
        if job is not None and job.address != address:
            raise AblationError(
                f"{run.folder} was submitted to {job.address} as job {job.submission_id}, which may be "
                f"running. To go on watching it type --ray-address {job.address}; to leave it: "
                f"{job.stop_command}, then rm '{run.folder / NOTE}'"
            )
