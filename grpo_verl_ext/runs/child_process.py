"""Run child processes that write to a log and never outlive this process."""

import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from grpo_verl_ext.utils.console import ending

_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


class ProcessFailedError(RuntimeError):
    """A child ended with a status other than 0; the message has the status, the log's path and last lines."""


def run_logged(
    command: Sequence[str],
    log: Path,
    *,
    environment: Mapping[str, str] = os.environ,
    while_running: Callable[[], None] = lambda: None,
) -> None:
    """Run ``command`` as `run_to_its_end`, with its output in ``log``; ProcessFailedError where it fails."""
    options = {"stderr": subprocess.STDOUT, "env": dict(environment)}
    with log.open("w") as output:
        status = run_to_its_end(command, while_running=while_running, stdout=output, **options)
    if status != 0:
        seen = f"{last_lines(log)}\n{' '.join(command[:3])} … ended with {ending(status)}"
        said = f"{seen}; its whole output is in {log}"
        raise ProcessFailedError(f"{said}. Run the same command again to resume")


def run_to_its_end(
    command: Sequence[str], *, while_running: Callable[[], None] = lambda: None, **options: Any
) -> int:
    """Run ``command`` and return its exit status.

    If this process is killed, so is the child. After Ctrl-C the child has time to end by itself; a second
    Ctrl-C ends it. ``while_running`` is called twice a second; ``options`` are those of `subprocess.Popen`.
    """
    # Only three system calls, which take no lock that another thread could hold.
    process = subprocess.Popen(command, preexec_fn=_prepare_child, **options)  # noqa: PLW1509
    try:
        while process.poll() is None:
            while_running()
            time.sleep(0.5)
    except BaseException:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(60)  # seconds to end by itself
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            process.kill()
            process.wait()
        raise
    return process.returncode


_WARNING = re.compile(r"(?:\(.*?\) )?(?:\S+:\d+: \w*Warning: |WARNING\b|\s*warnings\.warn\()")
"""The beginning of a line with a Python warning or one that a logger wrote, also as Ray shows them."""


def last_lines(log: Path, count: int = 15) -> str:
    """Return the last lines of a log, without its warnings."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if not _WARNING.match(line)]
    return "\n".join(lines[-count:])


def _prepare_child() -> None:
    """Let SIGINT end the child, and the kernel send it SIGTERM when the parent dies."""
    # A terminal sends Ctrl-C to its whole process group. In its own the child gets it once, from the parent,
    # so that no second one interrupts it while it removes what it had begun.
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # which a shell's background job ignores, and its children
    if _libc is not None:
        _libc.prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


MARK = "GRPO_VERL_EXT_RUN"
"""Environment variable that marks the processes of a run; its value is the run's folder."""


def marked(value: str) -> list[psutil.Process]:
    """Return this user's running processes with that value of `MARK`, this process excepted."""
    return [
        process
        for process in psutil.process_iter(["environ", "status"])
        if (process.info["environ"] or {}).get(MARK) == value
        and process.info["status"] != psutil.STATUS_ZOMBIE
        and process.pid != os.getpid()
    ]


def end_leftovers(value: str, *, patience: float) -> None:
    """Wait ``patience`` seconds, or until Ctrl-C, for marked processes to end, then end the others."""
    try:
        psutil.wait_procs(marked(value), timeout=patience)
    finally:
        alive = marked(value)
        for end in (psutil.Process.terminate, psutil.Process.kill):
            for process in alive:
                with suppress(psutil.NoSuchProcess):
                    end(process)
            _, alive = psutil.wait_procs(alive, timeout=5)
