"""A test's own Ray, started by `ray start` and ended by its mark; no other Ray is affected."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import SystemRandom

from ray.job_submission import JobSubmissionClient

from grpo_verl_ext.runs.child_process import MARK, end_leftovers

RAY = str(Path(sys.executable).with_name("ray"))

# Ray would ask for a token where a Ray of this user has ever left one, and start a process for each CPU.
QUIET = {"RAY_AUTH_MODE": "disabled", "RAY_prestart_worker_first_driver": "0"}


@contextmanager
def ray_head(*, cpus: int, gpus: int = 0, **environment: str) -> Iterator[str]:
    """A head node on this machine, as small as Ray gets; the address of its dashboard."""
    with ray_cluster(Node("head", cpus, gpus, environment)) as cluster:
        yield cluster.dashboard


@dataclass(frozen=True)
class Node:
    """One raylet: its logical size, and what its processes find in their environment.

    Tasks and actors are sent to it by its name, a resource of which it has one.
    """

    name: str
    cpus: int
    gpus: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Cluster:
    """Where a Ray answers: `dashboard` to the job API, `address` to ``ray.init`` and ``RAY_ADDRESS``."""

    dashboard: str
    address: str
    folder: Path


@contextmanager
def ray_cluster(*nodes: Node) -> Iterator[Cluster]:
    """Several raylets on this machine; the first is the head."""
    # Ray puts sockets there, whose paths may have 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    port, dashboard, agent, client = free_ports(4)
    head = [
        *("--head", f"--port={port}", f"--dashboard-port={dashboard}", f"--temp-dir={folder}"),
        *(f"--dashboard-agent-listen-port={agent}", f"--ray-client-server-port={client}"),
    ]
    cluster = Cluster(f"http://127.0.0.1:{dashboard}", f"127.0.0.1:{port}", folder)
    started: list[subprocess.Popen[bytes]] = []
    try:
        for node in nodes:
            where = [f"--address={cluster.address}"] if started else head
            log = folder / f"start-{node.name}.log"
            own = {**os.environ, **QUIET, MARK: str(folder), **node.environment}
            with log.open("w") as output:
                command = [RAY, "start", "--block", "--disable-usage-stats", *where, *_size(node)]
                started.append(subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=own))
            _wait_for_jobs_api(cluster.dashboard, started[-1], log)
        yield cluster
    finally:
        end_leftovers(str(folder), patience=0)
        for process in started:
            process.wait()
        shutil.rmtree(folder)


def _size(node: Node) -> list[str]:
    resources = json.dumps({node.name: 1})
    memory = f"--object-store-memory={128 * 2**20}"
    return [f"--num-cpus={node.cpus}", f"--num-gpus={node.gpus}", f"--resources={resources}", memory]


def free_ports(number: int) -> list[int]:
    """Ports that nobody listens at, all different, and none that Linux gives to a connection meanwhile."""
    ports: list[int] = []
    for port in SystemRandom().sample(range(20_000, 32_768), 10 * number):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            ports.append(port)
    return ports[:number]


def _wait_for_jobs_api(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + 120
    while True:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < end, log.read_text()
        try:
            JobSubmissionClient(address).list_jobs()
            return
        except (OSError, RuntimeError):
            time.sleep(0.2)
