"""Test Ray workers as forks: each is as Ray requested; where no fork is possible, a Python of its own."""

import json
import multiprocessing
import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import pytest
from processes import Python

from grpo_verl_ext.verl_plugin.cpu import forked_worker
from grpo_verl_ext.verl_plugin.cpu.forked_worker.__main__ import _READ_BY_IMPORTS

FOLDER = Path(forked_worker.__file__).parent
WORKER = """
import gc, json, os, signal, sys
print(json.dumps({
    "argv": sys.argv, "name": __name__, "path": sys.path[0], "folder": os.getcwd(),
    "mine": os.environ.get("MINE"), "parent": os.getppid(), "imported": "colorsys" in sys.modules,
    "gc": gc.isenabled(), "own_group": os.getpgrp() == os.getpid(),
    "children_are_collected": signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN,
    "vllm": os.environ.get("VLLM_TARGET_DEVICE"),
    **({"threads": sys.modules["torch"].get_num_threads(), "drawn": sys.modules["numpy"].random.rand()}
       if "torch" in sys.modules else {}),
}), flush=True)
print("to stderr", file=sys.stderr, flush=True)
sys.exit(int(sys.argv[-1]))
"""
LOADED = f"""
import importlib.util, sys
found = importlib.util.spec_from_file_location("forked_worker", {str(FOLDER / "__main__.py")!r})
module = sys.modules["forked_worker"] = importlib.util.module_from_spec(found)
found.loader.exec_module(module)
"""
"""As Ray runs the folder: without importing this package, which would import Ray."""
SERVER = f"""{LOADED}
module._PATIENCE = 0.2
module._ANSWER_SECONDS = 3
module.main(sys.argv[1:], ["torch", "colorsys", "no_such_module"])
"""
"""As Ray runs the folder, with fewer modules, one of which there is not."""
OF_TWO_FORKS = """
import os
import ray

def of_a_fork():
    ours, forks = os.pipe()
    if not os.fork():
        os.write(forks, ray.ObjectRef.from_random().hex().encode())
        os._exit(0)
    os.wait()
    return os.read(ours, 200).decode()

print(of_a_fork(), of_a_fork())
"""
"""Prints the first identifiers that two forks draw in Ray."""
RAYLET = """
import json, os, subprocess, sys
for line in sys.stdin:
    command, folder, environment, out, err = json.loads(line)
    with open(out, "w") as said, open(err, "w") as wrong:
        subprocess.Popen(command, cwd=folder, env=os.environ | environment, stdout=said, stderr=wrong)
"""


@dataclass
class Node:
    """A folder for the raylet's socket, and a parent for the processes that Ray would start."""

    folder: Path
    raylet: subprocess.Popen[str]
    number: int = field(default=0)

    def start(self, *arguments: str, status: int = 0, folder: str = "/", **environment: str) -> "Started":
        """Have the parent start a worker whose last argument is its exit status."""
        self.number += 1
        out, err = self.folder / f"{self.number}.out", self.folder / f"{self.number}.err"
        program = self.folder / "worker.py"
        program.write_text(WORKER)
        command = [sys.executable, "-c", SERVER, str(program), *arguments, str(status)]
        self.raylet.stdin.write(json.dumps([command, folder, environment, str(out), str(err)]) + "\n")
        self.raylet.stdin.flush()
        return Started(out, err)

    @property
    def address(self) -> str:
        return f"--raylet-name={self.folder / 'raylet'}"

    @property
    def socket(self) -> str:
        return f"\0{self.folder / 'raylet'}.fork"


@dataclass
class Started:
    """A worker that was asked for."""

    out: Path
    err: Path

    def says(self) -> dict[str, Any]:
        end = time.monotonic() + 60
        while not (self.out.exists() and self.out.read_text().endswith("\n")):
            assert time.monotonic() < end, self.err.read_text() if self.err.exists() else "not started"
            time.sleep(0.02)
        said: dict[str, Any] = json.loads(self.out.read_text())
        return said


@pytest.fixture
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp("node")
    # The path of a socket has at most 107 bytes.
    assert len(str(folder)) < 90
    environment = {name: value for name, value in os.environ.items() if name != "VLLM_TARGET_DEVICE"}
    raylet = subprocess.Popen(
        [sys.executable, "-c", RAYLET], stdin=subprocess.PIPE, text=True, env=environment
    )
    yield Node(folder, raylet)
    raylet.kill()
    raylet.wait()


def test_each_is_what_was_asked_for_and_has_the_modules_while_the_raylet_lives(node: Node) -> None:
    first = node.start(node.address, "one", OMP_NUM_THREADS="1", MINE="a").says()
    second = node.start(node.address, "two", status=3, folder="/tmp", OMP_NUM_THREADS="2", MINE="b").says()
    program = str(node.folder / "worker.py")
    for said, word, mine, folder, status, threads in (
        (first, "one", "a", "/", "0", 1),
        (second, "two", "b", "/tmp", "3", 2),
    ):
        assert said["argv"] == [program, node.address, word, status]
        assert said["name"] == "__main__"
        assert said["path"] == str(node.folder)
        assert (said["mine"], said["folder"], said["threads"]) == (mine, folder, threads)
        assert said["imported"]
        assert said["gc"]
        assert said["own_group"], "Ray ends the whole process group of a worker that has died"
        assert not said["children_are_collected"]
        assert said["vllm"] is None, "what the imports were told is not the worker's"
    assert first["parent"] == second["parent"], "both are forks of one process"
    assert psutil.Process(first["parent"]).ppid() == node.raylet.pid, "which the raylet has started"
    assert first["drawn"] != second["drawn"]
    assert (node.folder / "2.err").read_text() == "to stderr\n"
    said = (node.folder / "1.err").read_text()
    assert "No module named 'no_such_module'" in said
    assert "to stderr" in said
    server = psutil.Process(first["parent"])
    node.raylet.kill()
    node.raylet.wait()
    server.wait(10)


@pytest.mark.parametrize(
    ("imports", "same"),
    [
        (f"{LOADED}module._import_all(['actors'])", False),
        # If this becomes False, the identifiers of `_import_all` are needed no longer.
        ("import actors", True),
    ],
)
def test_forks_do_not_draw_the_same_identifiers_in_ray(
    imports: str, same: bool, interpreter: Python, tmp_path: Path
) -> None:
    (tmp_path / "actors.py").write_text("import ray\n\n@ray.remote\nclass Actor:\n    pass\n")
    done = interpreter(f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{imports}{OF_TWO_FORKS}")
    assert done.returncode == 0, done.stderr
    one, two = done.stdout.split()
    assert len(one) == 2 * 28, "bytes of an object's identifier"
    assert (one == two) is same


def test_what_imports_read_differs(node: Node) -> None:
    server = node.start(node.address).says()["parent"]
    other = node.start(node.address, VERL_PLATFORM="/other")
    assert not other.says()["imported"]
    assert "imports for itself: [Errno 111] PYTHONPATH, VERL_PLATFORM, " in other.err.read_text()
    assert node.start(node.address).says()["parent"] == server, "the server goes on"


def request() -> bytes:
    """What a worker sends whose imports would find the same modules, with other values."""
    same = {name: os.environ[name] for name in _READ_BY_IMPORTS if name in os.environ}
    return json.dumps({"arguments": ["worker.py"], "environment": same, "folder": "/"}).encode()


def client() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def test_what_is_no_request_starts_nothing_and_the_server_goes_on(node: Node) -> None:
    server = psutil.Process(node.start(node.address).says()["parent"])
    with client() as connection:
        connection.connect(node.socket)
        socket.send_fds(connection, [b"{not JSON}"], range(3))
        assert connection.recv(1) == b""
    with client() as never_sends:
        never_sends.connect(node.socket)
        assert node.start(node.address).says()["parent"] == server.pid
    # One that asks and is gone: its raylet has given it up, or it imports for itself.
    server.suspend()
    with client() as connection:
        connection.connect(node.socket)
        socket.send_fds(connection, [request()], range(3))
    server.resume()
    assert node.start(node.address).says()["parent"] == server.pid
    said = (node.folder / "1.err").read_text()
    assert said.count("grpo_verl_ext: no worker for a request: ") == 3, said
    assert "no worker for a request: [Errno 32] Broken pipe" in said


@pytest.mark.parametrize(("listens", "why"), [(True, "timed out"), (False, "[Errno 111] Connection refused")])
def test_a_server_that_never_answers_is_not_waited_for(node: Node, listens: bool, why: str) -> None:
    with client() as silent:
        silent.bind(node.socket)
        if listens:
            silent.listen()
        started = node.start(node.address)
        assert not started.says()["imported"]
    assert f"imports for itself: {why}" in started.err.read_text()


NOBODY = 65534


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")
class TestAnotherUser:
    """A process of another user finds the name of the socket, as any process of the machine does."""

    @staticmethod
    def process(function: Callable[[Connection], None]) -> Connection:
        """Call the function in a process of another user; return the other end of its pipe."""
        ours, theirs = multiprocessing.Pipe()
        if os.fork():
            theirs.close()
            return ours
        try:
            os.setuid(NOBODY)
            function(theirs)
        finally:
            os._exit(0)

    def test_gets_no_worker(self, node: Node) -> None:
        def asks(pipe: Connection) -> None:
            with client() as connection:
                connection.connect(node.socket)
                socket.send_fds(connection, [request()], range(3))
                with suppress(ConnectionResetError):
                    pipe.send(connection.recv(1))

        server = node.start(node.address).says()["parent"]
        with suppress(EOFError):
            assert self.process(asks).recv() == b""
        assert node.start(node.address).says()["parent"] == server
        refused = f"no worker for a request: [Errno 1] the process at the other end is of user {NOBODY}"
        assert refused in (node.folder / "1.err").read_text()

    def test_gets_no_environment(self, node: Node) -> None:
        def listens(pipe: Connection) -> None:
            with client() as taken:
                taken.bind(node.socket)
                taken.listen()
                pipe.send("listens")
                with taken.accept()[0] as connection:
                    pipe.send(connection.recv(2**16))

        pipe = self.process(listens)
        assert pipe.recv() == "listens"
        started = node.start(node.address, HF_TOKEN="secret")
        assert not started.says()["imported"]
        assert pipe.recv() == b""
        said = f"imports for itself: [Errno 1] the process at the other end is of user {NOBODY}"
        assert said in started.err.read_text()


@pytest.mark.parametrize("arguments", [(), ("--raylet-name=" + "x" * 200,)])
def test_no_place_for_a_socket(node: Node, arguments: tuple[str, ...]) -> None:
    started = node.start(*arguments)
    assert not started.says()["imported"]
    assert "grpo_verl_ext: this worker imports for itself: " in started.err.read_text()
    assert shlex.split(forked_worker.COMMAND) == [sys.executable, str(FOLDER)]


@pytest.mark.ci
def test_there_are_the_modules(interpreter: Python) -> None:
    done = interpreter(f"{LOADED}module._import_all(module._MODULES){OF_TWO_FORKS}", VERL_PLATFORM="cpu")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    one, two = done.stdout.splitlines()[-1].split()
    assert one != two, "their imports draw no identifier in Ray"
