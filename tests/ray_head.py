"""A Ray of the test's own: started by `ray start`, ended by its mark; nobody else's is met or touched."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ray.job_submission import JobSubmissionClient

from grpo_verl_ext.runs.leftovers import MARK, end_leftovers


@contextmanager
def ray_head(*, cpus: int, gpus: int = 0, **environment: str) -> Iterator[str]:
    """A head node on this machine, as small as Ray gets; the address of its dashboard."""
    # Ray puts sockets there, whose paths may have 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    port, dashboard, agent, client = free_ports(4)
    command = [
        *(str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", "--disable-usage-stats"),
        *(f"--port={port}", f"--dashboard-port={dashboard}", f"--dashboard-agent-listen-port={agent}"),
        *(f"--ray-client-server-port={client}", f"--temp-dir={folder}"),
        *(f"--num-cpus={cpus}", f"--num-gpus={gpus}", f"--object-store-memory={128 * 2**20}"),
    ]
    # Ray would ask for a token where a Ray of this user has ever left one, and start a process for each CPU.
    own = {"RAY_AUTH_MODE": "disabled", "RAY_prestart_worker_first_driver": "0", MARK: str(folder)}
    with (folder / "start.log").open("w") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **own, **environment}
        )
    address = f"http://127.0.0.1:{dashboard}"
    try:
        _wait_for_jobs_api(address, process, folder / "start.log")
        yield address
    finally:
        end_leftovers(str(folder), patience=0)
        process.wait()
        shutil.rmtree(folder)


def free_ports(number: int) -> list[int]:
    """Ports that nobody listens at, all different."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


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
