"""Test that two trainings on one Ray each use their own TransferQueue, a named actor of the whole Ray."""

import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray.job_submission import JobStatus, JobSubmissionClient
from ray_cluster import ray_head

from grpo_verl_ext.utils.keys import PATCHES_VARIABLE

pytestmark = pytest.mark.ci

JOB = """
import sys, time
from pathlib import Path
import ray
{plugin}
import transfer_queue as tq
from omegaconf import OmegaConf

own, other = Path(sys.argv[1]), Path(sys.argv[2])

@ray.remote
def keys():
    {plugin}
    import transfer_queue as tq
    tq.init()
    return sorted(tq.kv_list("train")["train"])

ray.init()
tq.init(OmegaConf.from_dotlist(["backend.SimpleStorage.num_data_storage_units=1"]))
tq.kv_put(own.name, partition_id="train", tag=dict(n=1))
own.touch()
while not other.exists():
    time.sleep(0.1)
own.with_suffix(".keys").write_text(repr(ray.get(keys.remote())))
while not other.with_suffix(".keys").exists():
    time.sleep(0.1)
"""


@pytest.fixture(scope="module")
def jobs() -> Iterator[JobSubmissionClient]:
    with ray_head(cpus=8) as address:
        yield JobSubmissionClient(address)


def test_each_of_two_jobs_sees_what_it_put_itself(tmp_path: Path, jobs: JobSubmissionClient) -> None:
    """verl loads the plugin, and the driver has asked for it (``algorithm.grpo_ext.own_queue=true``)."""
    variables = {PATCHES_VARIABLE: "own_queue"}
    assert keys_of_two_jobs(tmp_path, jobs, plugin="import verl", variables=variables) == ["['a']", "['b']"]


def test_without_the_plugin_they_still_share_one(tmp_path: Path, jobs: JobSubmissionClient) -> None:
    assert keys_of_two_jobs(tmp_path, jobs, plugin="", variables={}) == ["['a', 'b']", "['a', 'b']"], (
        "TransferQueue keeps jobs apart: is `_own_queue` of verl_plugin/patches needed?"
    )


def keys_of_two_jobs(
    folder: Path, jobs: JobSubmissionClient, *, plugin: str, variables: dict[str, str]
) -> list[str]:
    """What a worker of each job finds in the partition, while both are there."""
    script = folder / "job.py"
    script.write_text(JOB.format(plugin=plugin))
    ids = [
        jobs.submit_job(
            entrypoint=shlex.join(map(str, (sys.executable, script, folder / own, folder / other))),
            runtime_env={"env_vars": variables},
        )
        for own, other in ("ab", "ba")
    ]
    statuses: list[JobStatus] = []
    end = time.monotonic() + 150
    while not statuses or not all(status.is_terminal() for status in statuses):
        assert time.monotonic() < end, [jobs.get_job_logs(one) for one in ids]
        time.sleep(0.5)
        statuses = [jobs.get_job_status(one) for one in ids]
    assert statuses == [JobStatus.SUCCEEDED] * 2, [jobs.get_job_logs(one) for one in ids]
    return [(folder / f"{name}.keys").read_text() for name in "ab"]
