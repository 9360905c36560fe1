"""A training whose rollout lost a process ends, and says which; verl's trainer alone waits for ever."""

import json
from typing import Any

import pytest
from processes import Python

KILLED = """
import json, os, signal, threading, time
import ray, verl
import transfer_queue as tq
from omegaconf import OmegaConf
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
tq.init(OmegaConf.from_dotlist(["backend.SimpleStorage.num_data_storage_units=1"]))
tq.kv_put("uid", partition_id="train", tag=dict(is_prompt=True, status="running", global_steps=1))

@ray.remote(num_cpus=0)
class Worker:
    def pid(self):
        return os.getpid()

def started(name):
    worker = Worker.options(name=name).remote()
    return worker, ray.get(worker.pid.remote())

def outcome():
    buffer = ReplayBuffer("sync", OmegaConf.create(), None, "drop", OmegaConf.create(), poll_interval=0.5)
    found = ["it waits"]
    def sample():
        try:
            buffer.sample(1, "train", 1)
        except RuntimeError as error:
            found[0] = f"{type(error).__name__}: {error}"
    sampling = threading.Thread(target=sample, daemon=True)
    sampling.start()
    sampling.join(timeout=SECONDS)
    return found[0]

SECONDS = 5
asked, pid = started("agent_loop_worker_0_asked")
ray.kill(asked)
users, pid = started("sandbox")
os.kill(pid, signal.SIGKILL)
ignored = outcome()
lost, pid = started("agent_loop_worker_1_lost")
os.kill(pid, signal.SIGKILL)
SECONDS = 60
said = outcome()
ReplayBuffer._wait_for_next_poll = ReplayBuffer._wait_for_next_poll.__wrapped__
SECONDS = 5
print(json.dumps(dict(ignored=ignored, said=said, pid=pid, without=outcome())), flush=True)
ray.shutdown()
os._exit(0)  # one still waits
"""


@pytest.fixture(scope="module")
def outcomes(python: Python) -> dict[str, Any]:
    finished = python(KILLED)
    assert finished.returncode == 0, finished.stderr
    found: dict[str, Any] = json.loads(finished.stdout.splitlines()[-1])
    return found


def test_the_part_that_died_is_named_with_what_to_do(outcomes: dict[str, Any]) -> None:
    said = outcomes["said"]
    assert said.startswith(f"LostPartError: agent_loop_worker_1_lost (Worker, process {outcomes['pid']} on ")
    assert "its worker process has died" in said
    assert said.endswith("type the same command again: it goes on from the last checkpoint.")


def test_parts_that_somebody_ended_and_processes_of_users_are_not_looked_at(
    outcomes: dict[str, Any],
) -> None:
    assert outcomes["ignored"] == "it waits"


def test_verl_alone_waits(outcomes: dict[str, Any]) -> None:
    assert outcomes["without"] == "it waits", (
        "verl notices dead parts: is grpo_verl_ext/verl_plugin/patches/lost_part.py needed?"
    )
