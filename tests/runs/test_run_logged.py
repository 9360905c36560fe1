"""Test child processes that log, fail with a message and never outlive their parent."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from grpo_verl_ext.runs.child_process import ProcessFailedError, last_lines, run_logged
from grpo_verl_ext.utils.console import ending


def test_output_goes_to_the_log_and_the_environment_is_the_given_one(tmp_path: Path) -> None:
    code = "import os, sys; print(os.environ['WORD']); print('error', file=sys.stderr)"
    calls: list[int] = []
    run_logged(
        [sys.executable, "-c", code],
        tmp_path / "log",
        environment={**os.environ, "WORD": "said"},
        while_running=lambda: calls.append(1),
    )
    assert sorted((tmp_path / "log").read_text().split()) == ["error", "said"]
    assert calls


def test_a_failure_shows_status_log_and_last_lines(tmp_path: Path) -> None:
    code = "import sys; print('the reason'); print('WARNING: old'); sys.exit(3)"
    with pytest.raises(ProcessFailedError, match=r"(?s)the reason.*status 3; its whole output is in .*/log"):
        run_logged([sys.executable, "-c", code], tmp_path / "log", environment=os.environ)
    assert last_lines(tmp_path / "log") == "the reason"


def test_a_child_that_dies_of_a_signal_is_reported_with_its_name(tmp_path: Path) -> None:
    code = "import os; print('the last line', flush=True); os.kill(os.getpid(), 4)"
    said = r"(?s)the last line.* ended with SIGILL \(Illegal instruction\); its whole output is in "
    with pytest.raises(ProcessFailedError, match=said):
        run_logged([sys.executable, "-c", code], tmp_path / "log", environment=os.environ)


def test_a_signal_without_a_name_of_its_own() -> None:
    assert ending(-(signal.SIGRTMIN + 1)).startswith(f"signal {signal.SIGRTMIN + 1} (Real-time signal")


def test_only_warnings_are_left_out_of_the_last_lines(tmp_path: Path) -> None:
    """A reason may well speak of learning, or of a warning."""
    warnings = [
        "/site/module.py:12: UserWarning: old",
        "(WorkerDict pid=7) /site/module.py:12: FutureWarning: old",
        "  warnings.warn(f'old')",
        "WARNING:2026-11-22 10:00:00,000:slow",
        "WARNING 11-22 10:00:00 slow",
    ]
    reasons = [
        "ValueError: the learning rate is nan",
        "RuntimeError: a warning was turned into an error",
        "UserWarning: raised as an error",
    ]
    log = tmp_path / "log"
    log.write_text("\n".join([*warnings, *reasons]))
    assert last_lines(log).splitlines() == reasons


@pytest.mark.parametrize(
    "ours", [signal.default_int_handler, signal.SIG_IGN], ids=["foreground", "background"]
)
def test_an_interrupt_lets_the_child_end_first(tmp_path: Path, ours) -> None:
    """Also where SIGINT is ignored, as in a shell's background job, from which children inherit it."""
    code = (
        "import os, pathlib, time\n"
        f"os.chdir({str(tmp_path)!r})\n"
        "try:\n    pathlib.Path('started').touch(); time.sleep(60)\n"
        "except KeyboardInterrupt:\n    pathlib.Path('ended').touch()\n"
    )

    def interrupt() -> None:
        if (tmp_path / "started").exists():
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, ours)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_logged(
                [sys.executable, "-c", code],
                tmp_path / "log",
                environment=os.environ,
                while_running=interrupt,
            )
    finally:
        signal.signal(signal.SIGINT, before)
    assert (tmp_path / "ended").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's word for it is Linux's; run on Linux")
def test_the_child_of_a_killed_process_ends(tmp_path: Path) -> None:
    parent_code = (
        "import os, sys, pathlib\n"
        "from grpo_verl_ext.runs.child_process import run_logged\n"
        "sleep = [sys.executable, '-c', 'import time; time.sleep(60)']\n"
        f"run_logged(sleep, pathlib.Path({str(tmp_path / 'log')!r}), environment=os.environ)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", parent_code])
    try:
        children = wait_for_children(psutil.Process(parent.pid))
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive


def wait_for_children(process: psutil.Process) -> list[psutil.Process]:
    end = time.monotonic() + 60
    while not (children := process.children()):
        assert time.monotonic() < end
        time.sleep(0.1)
    time.sleep(0.5)  # past the child's first system call
    return children
