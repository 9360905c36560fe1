"""Test that a training that lost a process, or whose reward model failed, ends and names it."""

import re
import subprocess
import threading

import pytest
from processes import Python

from grpo_verl_ext.verl_plugin.patches import watchdog
from grpo_verl_ext.verl_plugin.patches.watchdog import LostActorError

DRIVER = """
import os, signal, sys
import ray
from grpo_verl_ext.verl_plugin import wire
from grpo_verl_ext.verl_plugin.patches import watchdog

@ray.remote(num_cpus=0)
class Worker:
    def pid(self):
        return os.getpid()
    def fail(self):
        wire.report_failure(ValueError("the score is nan"))
        raise ValueError
    def forever(self):
        signal.pause()

def started(name):
    worker = Worker.options(name=name).remote()
    return worker, ray.get(worker.pid.remote())

@ray.remote(num_cpus=0)
class TaskRunner:
    # As verl's: owns the other actors, and waits for one of them in its main thread.
    def run(self, killed):
        watchdog._LOOK_SECONDS, watchdog._VERL_SECONDS = 0.5, 1.0
        trainer = Worker.remote()
        asked, _ = started("agent_loop_worker_0_asked" + killed)
        users, users_pid = started("sandbox" + killed)
        lost, pid = started("agent_loop_worker_1_" + killed)
        with watchdog.watched():
            ray.kill(asked)
            os.kill(users_pid, signal.SIGKILL)
            try:
                ray.get(trainer.forever.remote(), timeout=4)
            except ray.exceptions.GetTimeoutError:
                print("nothing was lost", flush=True)
            if killed == "none":
                return "the second training ended well"
            print(f"lost {pid}.", flush=True)
            os.kill(pid, signal.SIGKILL)
            ray.get(trainer.forever.remote())

ray.init(address="local", num_cpus=1, include_dashboard=False)
try:
    first = TaskRunner.remote()
    ray.get(first.run.remote("killed"))
except ray.exceptions.RayTaskError as error:
    print(type(error).__name__, "caught:", str(error.cause), file=sys.stderr, flush=True)
print(ray.get(first.run.remote("none")), flush=True)

def wait(worker):
    ray.get(worker.forever.remote())

def end(worker):
    pass

def end_otherwise(worker):
    raise RuntimeError("no trajectories")

for then, watchdog._LOOK_SECONDS in ((wait, 1), (end, 600), (end_otherwise, 600)):
    try:
        with watchdog.watched():
            worker = Worker.remote()
            try:  # as in verl: the error of a reward is logged, and its response is left out
                ray.get(worker.fail.remote())
            except ray.exceptions.RayTaskError:
                then(worker)
    except RuntimeError as error:
        print(then.__name__, "raised:", error, flush=True)
with watchdog.watched():
    print("another training ended well", flush=True)
"""


@pytest.fixture(scope="module")
def driver(python: Python) -> subprocess.CompletedProcess[str]:
    return python(DRIVER, RAY_raylet_start_wait_time_s="120")


@pytest.mark.ci
def test_the_training_ends_with_an_error_that_names_the_part_and_what_to_do(
    driver: subprocess.CompletedProcess[str],
) -> None:
    (pid,) = re.findall(r"lost (\d+)\.$", driver.stdout, re.M)
    (message,) = re.findall(r"^RayTaskError\(LostActorError\) caught: (.*)$", driver.stderr, re.M)
    assert message.startswith(f"agent_loop_worker_1_killed (Worker, process {pid} on "), driver.stderr
    assert "its worker process has died" in driver.stderr
    assert "Type the same command again: it goes on from the last checkpoint" in driver.stderr
    assert "nothing was lost" in driver.stdout, "what somebody ended, and a user's own process, is no part"
    assert len(re.findall(r"(?:caught|;).*? \(Worker, process", driver.stderr)) == 1
    assert driver.returncode == 0, driver.stderr
    assert "the second training ended well" in driver.stdout, "what the first lost is not held against it"


@pytest.mark.ci
def test_a_training_ends_with_the_error_of_a_reward_where_verl_would_go_on(
    driver: subprocess.CompletedProcess[str],
) -> None:
    """While it waits, at its end, and where verl itself ends for want of responses; the next one is new."""
    ends = [line for line in driver.stdout.splitlines() if "raised: the score is nan" in line]
    assert [line.split()[0] for line in ends] == ["wait", "end", "end_otherwise"], driver.stderr
    assert driver.stdout.splitlines()[-1] == "another training ended well"


def test_where_ray_cannot_be_asked_the_training_runs_and_one_warning_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def moved() -> dict[str, str]:
        raise ImportError("cannot import name 'state'")

    monkeypatch.setattr(watchdog, "_lost_actors", moved)
    with watchdog.watched():
        print("trained")
    said = capsys.readouterr()
    assert said.out == "trained\n"
    (line,) = said.err.splitlines()
    assert line.startswith("grpo_verl_ext: warning: the actors of this training are not watched (ImportError")


def test_parts_by_name() -> None:
    parts = [
        "TransferQueueStorageUnit#0",
        "x3Q1aUWorkerDict_0:1",
        "vllm_server_0_0",
        "trtllm_server_reward_0",
    ]
    for name in (*parts, "my_agent_loop_worker_0", ""):
        assert bool(watchdog._WATCHED_ACTORS.match(name)) is (name in parts), name


ENGINE = """
import asyncio
from types import SimpleNamespace
from grpo_verl_ext.verl_plugin.patches import watchdog

watchdog._LOOK_SECONDS = 0.1

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

watchdog.patch_vllm_server(SimpleNamespace(vLLMHttpServer=Server))
asyncio.run(main())
"""


def test_a_server_ends_with_its_engine(python: Python) -> None:
    ended = python(ENGINE)
    assert (ended.returncode, ended.stdout) == (1, "serves\n")
    assert ended.stderr.endswith("the EngineCore of this vLLM server died; the server ends with it\n")


def test_a_training_that_has_ended_meanwhile_gets_no_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal has no handler any more then, and would end the process without a word."""
    done, found, sent = threading.Event(), [], []

    def reported() -> RuntimeError:
        done.set()
        return RuntimeError("late")

    monkeypatch.setattr(watchdog, "_LOOK_SECONDS", 0)
    monkeypatch.setattr(watchdog, "_lost_actors", dict)
    monkeypatch.setattr(watchdog.wire, "reported_failure", reported)
    monkeypatch.setattr(watchdog.signal, "pthread_kill", lambda *which: sent.append(which))
    watchdog._look(set(), done, threading.Lock(), found)
    assert (found, sent) == ([], [])


def test_a_lost_server_is_told_by_what_its_agent_loop_reports_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server's death is seen at once, the failed request only seconds later; the latter says more."""
    told = [None, RuntimeError("no log-probs in 3 attempts")]
    found: list[RuntimeError] = []
    monkeypatch.setattr(watchdog, "_LOOK_SECONDS", 0)
    monkeypatch.setattr(watchdog, "_lost_actors", lambda: {"1": "vllm_server_0 died."})
    monkeypatch.setattr(watchdog.wire, "reported_failure", lambda: told.pop(0))
    monkeypatch.setattr(watchdog.signal, "pthread_kill", lambda *which: None)
    watchdog._look(set(), threading.Event(), threading.Lock(), found)
    assert [str(each) for each in found] == ["no log-probs in 3 attempts"]


def test_what_was_reported_is_the_cause_of_any_error_that_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "_lost_actors", dict)
    monkeypatch.setattr(watchdog.wire, "report_failure", lambda _: None)
    monkeypatch.setattr(watchdog.wire, "reported_failure", lambda: RuntimeError("the server is gone"))
    with pytest.raises(RuntimeError, match="the server is gone"), watchdog.watched():
        raise KeyError("no responses")


@pytest.mark.parametrize(
    ("error", "kind"), [(LostActorError("no\nanswer"), LostActorError), (KeyError("a"), RuntimeError)]
)
def test_a_reported_error_comes_back_as_its_class(
    monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[Exception]
) -> None:
    kept: dict[bytes, bytes] = {}
    monkeypatch.setattr("ray.experimental.internal_kv._internal_kv_put", kept.__setitem__)
    monkeypatch.setattr("ray.experimental.internal_kv._internal_kv_get", kept.get)
    monkeypatch.setattr(watchdog.wire, "_failure_key", lambda: b"job")
    watchdog.wire.report_failure(error)
    found = watchdog.wire.reported_failure()
    assert (type(found), str(found)) == (kind, str(error))
