"""Start a command line or the quick start, let it wait at a stage, and interrupt it there as a terminal does.

verl is the stand-in of ``fake_verl`` in children alone; the command line itself composes with the real one.
"""

import importlib
import os
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import processes
import psutil

HERE = "here\n"
"""What a process prints when it has reached the stage."""
SECONDS = 300
RESUME = "Interrupted. Run the same command again to resume."
ROOT = Path(__file__).parents[2]
FAKE_VERL = os.pathsep.join([str(ROOT / "tests" / "helpers" / "fake_verl"), str(ROOT)])


def command_line(stage: str | None, *words: str) -> None:
    """Run ``grpo-verl-ext WORDS`` in a session of its own."""
    _begin(stage)
    sys.argv = ["grpo-verl-ext", *words]
    from grpo_verl_ext.cli import app

    app()


def quickstart(stage: str | None, *words: str) -> None:
    """Run ``examples/quickstart.py WORDS`` in a session of its own, with a task that needs no preparation."""
    sys.path.insert(0, str(ROOT / "examples"))
    main = importlib.import_module("quickstart")
    main.prepare = lambda *_: None
    _begin(stage)
    sys.argv = ["quickstart.py", *words]
    main.main()


def _begin(stage: str | None) -> None:
    """Wait at ``module:function``, or ``module:function:N`` at its N-th call."""
    os.setsid()
    os.environ["PYTHONPATH"] = FAKE_VERL
    if stage is None or ":" not in stage:
        return
    module, function, *call = stage.split(":")
    owner = importlib.import_module(module)
    original, left = getattr(owner, function), [int(call[0]) if call else 1]

    def waits(*args: object, **options: object) -> object:
        left[0] -= 1
        if left[0] == 0:
            print(HERE, end="", flush=True)
            time.sleep(SECONDS)
        return original(*args, **options)

    setattr(owner, function, waits)


def start(
    program: Callable[..., None], stage: str | None, *words: str, folder: Path, **environment: str
) -> BaseProcess:
    """Start it; what it prints goes to ``folder``. A stage without ``:`` is one of ``fake_verl``."""
    folder.mkdir(parents=True, exist_ok=True)
    waits = {"FAKE_WAIT": stage, "FAKE_WAITS": str(folder / "here")} if stage and ":" not in stage else {}
    for name in ("here", "stdout", "stderr"):
        (folder / name).unlink(missing_ok=True)
    return processes.start(program, stage, *words, folder=folder, env={**environment, **waits})


def interrupt(process: BaseProcess, folder: Path) -> None:
    """Wait for the stage, press Ctrl-C, and check status, the one line, and that no process is left."""
    until(lambda: (folder / "here").exists() or HERE in printed(folder / "stdout"), process)
    session = processes_of(process.pid)
    os.killpg(process.pid, signal.SIGINT)
    process.join(SECONDS)
    said = (folder / "stderr").read_text()
    assert process.exitcode == 130, said
    assert said.count(RESUME) == 1
    assert "Traceback" not in said
    _, alive = psutil.wait_procs(session, timeout=10)
    assert not alive


def printed(file: Path) -> str:
    """What is in a file that the process opens itself."""
    return file.read_text() if file.exists() else ""


def until(condition: Callable[[], bool], process: BaseProcess) -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        assert process.is_alive(), "it ended before the stage"
        assert time.monotonic() < end
        time.sleep(0.1)


def processes_of(session: int | None) -> list[psutil.Process]:
    """The processes of a session, which began with this one."""
    return [each for each in psutil.process_iter() if _session(each.pid) == session]


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None
