"""Test the rule that chooses a Ray, and that Ray follows it beside one started by `ray start`."""

import json
import os
import sys
import time
from collections.abc import Iterator

import pytest
from omegaconf import OmegaConf
from processes import run_program
from ray_cluster import QUIET, Node, ray_cluster

from grpo_verl_ext.driver import _settle_ray
from grpo_verl_ext.runs.child_process import MARK
from grpo_verl_ext.utils.which_ray import which_ray
from grpo_verl_ext.verl_plugin.cpu import forked_worker

KEY = "ray_kwargs.ray_init.address"
OWN = (f"++{KEY}=local",)
NO_SIZES = (
    "ray_kwargs.ray_init.num_cpus=null",
    "++ray_kwargs.ray_init.num_gpus=null",
    "++ray_kwargs.ray_init._system_config=null",
)


@pytest.mark.parametrize(
    ("overrides", "variable", "address", "given_by"),
    [
        ([], None, "local", None),
        ([], "head:6379", "head:6379", "RAY_ADDRESS"),
        ([], "local", "local", "RAY_ADDRESS"),
        ([f"+{KEY}=other:6379"], "head:6379", "other:6379", KEY),
        ([f"++{KEY}='ray://other:10001'"], None, "ray://other:10001", KEY),
        ([f"+{KEY}=one:1", f"++{KEY}=two:2"], None, "two:2", KEY),
        ([f"+{KEY}=local"], "head:6379", "local", KEY),
        ([f"+{KEY}=auto"], None, "auto", KEY),
        ([f"+{KEY}=auto"], "head:6379", "head:6379", "RAY_ADDRESS"),
        ([f"+{KEY}=null"], None, "local", None),
        (["ray_kwargs.ray_init={num_cpus: 2, address: other:6379}"], None, "other:6379", KEY),
        # Nothing of Ray's address in these.
        (["+ray_kwargs.ray_init._node_ip_address=1.2.3.4"], None, "local", None),
        (["+x.ray_kwargs.ray_init.address=other:6379"], None, "local", None),
        (["+ray_kwargs.ray_init.address_of=other:6379"], None, "local", None),
    ],
)
def test_the_address_that_is_given_or_its_own(overrides, variable, address, given_by, monkeypatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", variable or "")
    ray = which_ray(overrides)
    assert ray.address == address
    named = {by for by in ("RAY_ADDRESS", KEY) if by in ray.words}
    assert named == ({"RAY_ADDRESS", KEY} if given_by is None else {given_by})
    assert ray.arguments == (OWN if address == "local" else NO_SIZES)
    said = "Ray: one of its own" if address == "local" else f"Ray: the one at {address}, "
    assert ray.words.startswith(said)


def test_the_section_of_the_cpu_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"num_cpus": 16, "num_gpus": 1, "_system_config": {"a": 1}, "include_dashboard": False}

    def settled(**more: object) -> dict[str, object]:
        config = OmegaConf.create({"ray_kwargs": {"ray_init": {**sizes, **more}}})
        OmegaConf.set_struct(config, True)
        _settle_ray(config)
        return OmegaConf.to_container(config.ray_kwargs.ray_init)

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    own = {**sizes, "address": "local", "runtime_env": {"py_executable": forked_worker.COMMAND}}
    assert settled() == own
    assert settled(address="other:6379") == {"include_dashboard": False, "address": "other:6379"}
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    assert settled() == {"include_dashboard": False}
    assert settled(address="local") == own
    given = {"py_executable": "python", "env_vars": {"A": "1"}}
    assert settled(address="local", runtime_env=given)["runtime_env"] == given
    assert settled(address="local", runtime_env={"py_executable": None}) == own


@pytest.fixture
def left_behind() -> Iterator[tuple[str, str]]:
    """A Ray that `ray start` has left, where a ``ray.init`` with the same temporary folder looks for one.

    The folder is the test's, so that nobody else's ``ray.init`` finds it. Yields folder and address.
    """
    with ray_cluster(Node("head", cpus=2)) as cluster:
        (cluster.folder / "ray").symlink_to(cluster.folder)
        note, end = cluster.folder / "ray_current_cluster", time.monotonic() + 120
        while not note.exists():
            assert time.monotonic() < end
            time.sleep(0.2)
        yield str(cluster.folder), note.read_text().strip()


ASKED = """
import json, os, sys
from pathlib import Path
import ray
from verl.trainer.main_ppo import run_ppo
from grpo_verl_ext.runs.verl_run import VerlRun
from grpo_verl_ext.verl_plugin.compose import composed

class Answer(Exception): ...

class TaskRunner:
    @staticmethod
    def remote():
        raise Answer(ray.get_runtime_context().gcs_address)

def used_by(config):
    try:
        run_ppo(config, TaskRunner)
    except (Answer, ValueError) as answer:
        return str(answer)
    finally:
        ray.shutdown()

def local_run(*overrides):
    minus_m, trainer, *words = VerlRun(Path("run"), overrides, steps=1).command()
    return composed(words)

CPU = "+platform=cpu"
found = {"verl alone": used_by(composed([])), "a local run": used_by(local_run(CPU))}
os.environ["RAY_ADDRESS"] = sys.argv[1]
found |= {"the preset alone": used_by(composed([CPU]))}
found |= {"a local run with an address": used_by(local_run(CPU))}
print(json.dumps(found))
"""


@pytest.mark.ci
def test_a_local_run_is_not_in_the_ray_that_was_left_unless_told_to(left_behind: tuple[str, str]) -> None:
    folder, left = left_behind
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    environment |= {"RAY_TMPDIR": folder, MARK: folder, **QUIET}
    asked = run_program([sys.executable, "-c", ASKED, left], env=environment)
    assert asked.returncode == 0, asked.stderr
    found = json.loads(asked.stdout.splitlines()[-1])
    own = found.pop("a local run")
    assert own.count(":") == 1
    assert own != left
    assert found == {
        # If this fails, ray.init does not join what `ray start` left any more: which_ray is not needed.
        "verl alone": left,
        # The driver takes the size of a Ray back, which ray.init refuses here.
        "the preset alone": left,
        "a local run with an address": left,
    }
