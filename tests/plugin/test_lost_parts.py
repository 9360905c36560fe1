"""A training that lost a process ends, and says which."""

import re
import subprocess

import pytest
from processes import Python

from grpo_verl_ext.verl_plugin.lost_parts import PARTS

DRIVER = """
import os, signal
import ray
from grpo_verl_ext.verl_plugin import lost_parts

lost_parts.SECONDS, lost_parts.PATIENCE = 0.5, 1.0
lost_parts.watch()
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)

@ray.remote(num_cpus=0)
class Worker:
    def pid(self):
        return os.getpid()
    def forever(self):
        signal.pause()

def started(name):
    worker = Worker.options(name=name).remote()
    return worker, ray.get(worker.pid.remote())

trainer = Worker.remote()
asked, _ = started("agent_loop_worker_0_asked")
ray.kill(asked)
users, pid = started("sandbox")
os.kill(pid, signal.SIGKILL)
try:
    ray.get(trainer.forever.remote(), timeout=5)
except ray.exceptions.GetTimeoutError:
    print("nothing was lost", flush=True)
lost, pid = started("agent_loop_worker_1_lost")
print(f"lost {pid}.", flush=True)
os.kill(pid, signal.SIGKILL)
ray.get(trainer.forever.remote())
"""


@pytest.fixture(scope="module")
def driver(python: Python) -> subprocess.CompletedProcess[str]:
    return python(DRIVER)


def test_the_driver_ends_and_names_the_part_and_what_to_do(driver: subprocess.CompletedProcess[str]) -> None:
    assert driver.returncode == 1, driver.stderr
    (pid,) = re.findall(r"^lost (\d+)\.$", driver.stdout, re.M)
    (message,) = [line for line in driver.stderr.splitlines() if line.startswith("grpo_verl_ext: ")]
    assert message.startswith(f"grpo_verl_ext: agent_loop_worker_1_lost (Worker, process {pid} on ")
    assert "its worker process has died" in message
    assert message.endswith("Type the same command again: it goes on from the last checkpoint")


def test_what_somebody_ended_and_processes_of_users_are_no_lost_parts(
    driver: subprocess.CompletedProcess[str],
) -> None:
    assert "nothing was lost" in driver.stdout
    assert "asked" not in driver.stderr
    assert "sandbox" not in driver.stderr


@pytest.mark.parametrize(
    ("name", "is_part"),
    [
        ("TransferQueueStorageUnit#0", True),
        ("x3Q1aUWorkerDict_0:1", True),
        ("vllm_server_0_0", True),
        ("my_agent_loop_worker_0", False),
        ("", False),
    ],
)
def test_parts_by_name(name: str, is_part: bool) -> None:
    assert bool(PARTS.match(name)) is is_part


ENGINE = """
import asyncio
from types import SimpleNamespace
from grpo_verl_ext.verl_plugin.patches import engine_death

engine_death.SECONDS = 0.1

class Server:
    async def run_server(self):
        self.engine = SimpleNamespace(errored=False)

async def main():
    server = Server()
    await server.run_server()
    await asyncio.sleep(1)
    print("serves", flush=True)
    server.engine.errored = True
    await asyncio.sleep(60)

engine_death.patch(SimpleNamespace(vLLMHttpServer=Server))
asyncio.run(main())
"""


def test_a_server_ends_with_its_engine(python: Python) -> None:
    ended = python(ENGINE)
    assert (ended.returncode, ended.stdout) == (1, "serves\n")
    assert ended.stderr.endswith("the EngineCore of this vLLM server died; the server ends with it\n")
