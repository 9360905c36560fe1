"""Python processes for tests, forked from a server that has imported what verl imports.

A new interpreter takes seconds for these imports, and hundreds of tests need one. The server does not import
verl or this package: each process loads them itself, as in a training.
"""

import atexit
import multiprocessing
import os
import pickle
import subprocess
import sys
import textwrap
import time
import types
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

SECONDS = 600
"""How long a piece of Python may take, also on one slow core beside other tests."""
PRELOADED = [
    *("pytest", "torch", "torch._dynamo", "torch._inductor.lowering", "torch.distributed.fsdp"),
    *("tensordict", "transformers", "transformers.modeling_utils", "trl.experimental.ppo", "datasets", "ray"),
    *("fastapi", "zmq", "networkx", "hydra", "omegaconf", "pandas", "numpy", "scipy", "pydantic", "wrapt"),
    *("typer", "rich", "accelerate", "peft", "wandb"),
]

# How many kills at random moments, and how many processes of a training.
KILLS = [pytest.param(2, marks=pytest.mark.ci), pytest.param(5, marks=pytest.mark.long)]
SIZES = [pytest.param(1, marks=pytest.mark.ci), 2, pytest.param(4, marks=pytest.mark.ci)]
Python = Callable[..., subprocess.CompletedProcess[str]]
"""The fixtures ``python`` and ``interpreter``: code and environment variables → the finished process."""

STARTED: list[object] = []
"""What each process was started for; most import verl."""
_FORKED = multiprocessing.get_context("forkserver")
_FORKED.set_forkserver_preload(PRELOADED)


def run_interpreter(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run ``python -c CODE`` with more environment variables; a failure is in the result, but no signal."""
    STARTED.append(code)
    words = [sys.executable, "-c", textwrap.dedent(code)]
    return _not_killed(run_program(words, env={**os.environ, **env}))


def run_program(words: Sequence[object], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; what it prints and its status, whichever, are in the result."""
    given = {"capture_output": True, "text": True, "timeout": SECONDS} | options
    return subprocess.run([str(word) for word in words], check=False, **given)


def run_forked(code: str, **env: str | None) -> subprocess.CompletedProcess[str]:
    """As `run_interpreter`, in a forked process."""
    with TemporaryDirectory() as folder:
        process = start(run_code, code, folder=Path(folder), env=env)
        process.join(SECONDS)
        if process.is_alive():
            process.kill()
            process.join()
        said = [(Path(folder) / name).read_text() for name in ("stdout", "stderr")]
    return _not_killed(subprocess.CompletedProcess([sys.executable, "-c", code], process.exitcode, *said))


def _not_killed(finished: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    # Processes are forked from one that has not imported this package, and import this module.
    from grpo_verl_ext.utils.console import ending

    last = "\n".join((finished.stdout + finished.stderr).splitlines()[-15:])
    assert finished.returncode >= 0, f"the process died of {ending(finished.returncode)}, after:\n{last}"
    return finished


def run_ranks(run_rank: Callable[..., None], size: int, *args: Any, folder: Path, **env: str) -> None:
    """Call ``run_rank(rank, *args)`` on ``size`` processes at once, and wait for all.

    What they all need, verl's workers, is imported once, and then they are forked. Where one fails, its
    traceback is that of the assertion; ``folder`` gets what they print.
    """
    from ray_cluster import free_ports

    (port,) = map(str, free_ports(1))
    where = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "VERL_PLATFORM": "cpu"}
    process = start(_on_ranks, run_rank, size, *args, folder=folder, env=where | env)
    process.join(SECONDS)
    if process.is_alive():
        process.kill()
    from grpo_verl_ext.utils.console import ending

    ended = f"it ended with {ending(process.exitcode or 0)}, after:\n"
    assert process.exitcode == 0, ended + (folder / "stderr").read_text()[-4000:]


def start(
    function: Callable[..., object], *args: Any, folder: Path, env: Mapping[str, str | None] | None = None
) -> BaseProcess:
    """Start a process that calls the function; what it prints goes to ``folder/stdout`` and ``stderr``.

    ``env`` has variables beside this process's own; None takes one away.
    """
    variables = {name: value for name, value in {**os.environ, **(env or {})}.items() if value is not None}
    # Pickled by hand: reading it imports the function's module, for which the variables must be in place.
    STARTED.append(function)
    process = _FORKED.Process(target=_called, args=(pickle.dumps((function, args)), folder, variables))
    process.start()
    return process


class Spoken:
    """A started process that says on its standard output how far it is, to be killed there or waited for."""

    def __init__(self, function: Callable[..., object], *args: Any, folder: Path) -> None:
        """Start it, as `start` does; ``folder`` is made, and its own."""
        folder.mkdir()
        self._process, self._stdout = start(function, *args, folder=folder), folder / "stdout"

    def first_line(self) -> str:
        """Wait for it."""
        for _ in range(SECONDS * 100):
            if self._stdout.exists() and "\n" in (said := self._stdout.read_text()):
                return said.splitlines()[0]
            assert self._process.is_alive(), f"it ended without a word, with {self._process.exitcode}"
            time.sleep(0.01)
        raise AssertionError(f"it has said nothing for {SECONDS} s")

    def kill(self) -> None:
        """End it by SIGKILL."""
        self._process.kill()
        self._process.join()

    def said(self) -> str:
        """Wait for its end, which must be a good one, and return all of it."""
        self._process.join(SECONDS)
        assert self._process.exitcode == 0, (self._stdout.with_name("stderr")).read_text()[-4000:]
        return self._stdout.read_text()


def run_code(code: str) -> None:
    """The code as the process's main module."""
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    sys.argv = ["-c"]
    exec(compile(textwrap.dedent(code), "<string>", "exec"), main.__dict__)


def _on_ranks(run_rank: Callable[..., None], size: int, *args: Any) -> None:
    import torch
    import verl.workers.engine_workers  # noqa: F401

    torch.multiprocessing.start_processes(run_rank, args, nprocs=size, start_method="fork")


def _called(call: bytes, folder: Path, environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    for stream, name in ((sys.stdout, "stdout"), (sys.stderr, "stderr")):
        with (folder / name).open("w") as file:
            os.dup2(file.fileno(), stream.fileno())
        stream.reconfigure(line_buffering=True)
    try:
        function, args = pickle.loads(call)
        function(*args)
    finally:
        # A forked process of multiprocessing ends without them.
        atexit._run_exitfuncs()
