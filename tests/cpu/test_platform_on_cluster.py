"""Test the platform of a training's processes on a Ray cluster whose head node has no accelerator.

To verl the second node appears to have one: its processes find a program ``nvidia-smi``.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from omegaconf import OmegaConf
from ray_cluster import QUIET, Cluster, Node, ray_cluster

from grpo_verl_ext import driver
from grpo_verl_ext.verl_plugin.compose import composed

pytestmark = pytest.mark.long

JOB = """
import json, sys
import ray

def platform():
    import verl
    from verl.plugin.platform import get_platform
    return type(get_platform()).__name__

ray.init(runtime_env=json.loads(sys.argv[1]), log_to_driver=False)
ask = ray.remote(platform)
nodes = [ask.options(num_gpus=0, resources=needs).remote() for needs in ({"head": 0.01}, {"gpu_node": 0.01})]
print(json.dumps(ray.get(nodes)))
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    programs = tmp_path_factory.mktemp("programs")
    smi = programs / "nvidia-smi"
    smi.write_text("#!/bin/sh\n")
    smi.chmod(0o755)
    looks_like_one = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    with ray_cluster(Node("head", 1), Node("gpu_node", 1, 1, looks_like_one)) as started:
        yield started


def platforms(cluster: Cluster, variables: dict[str, str], **environment: str) -> list[str]:
    """Of a process on the head node and of one on the other, of a training with these variables."""
    finished = subprocess.run(
        [sys.executable, "-c", JOB, json.dumps({"env_vars": variables})],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **QUIET, "RAY_ADDRESS": cluster.address, **environment},
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    found: list[str] = json.loads(finished.stdout.splitlines()[-1])
    return found


def handed_on(*overrides: str) -> dict[str, str]:
    """The variables that the driver's hook writes for the processes of a training."""
    config = composed(overrides)
    driver.hand_on(config, driver.environment(config))
    variables = OmegaConf.to_container(config.ray_kwargs.ray_init.runtime_env.env_vars)
    assert isinstance(variables, dict)
    return variables


def test_unasked_no_process_becomes_one_of_the_cpu_platform(cluster: Cluster) -> None:
    """Nor do those of a training with one of our algorithms; the driver here sees no accelerator either."""
    assert platforms(cluster, handed_on("+algo=gvpo")) == ["PlatformCUDA", "PlatformCUDA"]


@pytest.mark.parametrize("by", ["preset", "environment"])
def test_asked_every_process_does(cluster: Cluster, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if by == "environment":
        monkeypatch.setenv("VERL_PLATFORM", "cpu")
    asked = handed_on("+algo=gvpo", *["+platform=cpu"] * (by == "preset"))
    assert platforms(cluster, asked) == ["PlatformCPU", "PlatformCPU"]
