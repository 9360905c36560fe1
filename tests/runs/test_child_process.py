"""Test child processes that log, fail with a message and never outlive their parent, and what a run left."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from grpo_verl_ext.runs.child_process import (
    MARK,
    ProcessFailedError,
    end_leftovers,
    last_lines,
    marked,
    run_logged,
    run_to_its_end,
)
from grpo_verl_ext.utils.console import ending


def test_output_goes_to_the_log_and_the_environment_is_the_given_one(tmp_path: Path) -> None:
    code = "import os, sys; print(os.environ['WORD']); print('error', file=sys.stderr)"
    calls: list[int] = []
    command, environment = [sys.executable, "-c", code], {**os.environ, "WORD": "said"}
    run_logged(command, tmp_path / "log", environment=environment, while_running=lambda: calls.append(1))
    assert sorted((tmp_path / "log").read_text().split()) == ["error", "said"]
    assert calls


@pytest.mark.parametrize(
    ("end", "words"),
    [("sys.exit(3)", "status 3"), ("os.kill(os.getpid(), 4)", r"SIGILL \(Illegal instruction\)")],
)
def test_a_failure_shows_how_it_ended_log_and_last_lines(tmp_path: Path, end: str, words: str) -> None:
    code = f"import os, sys; print('the reason', flush=True); {end}"
    said = rf"(?s)the reason.* ended with {words}; its whole output is in .*/log"
    with pytest.raises(ProcessFailedError, match=said):
        run_logged([sys.executable, "-c", code], tmp_path / "log")


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
            run_logged([sys.executable, "-c", code], tmp_path / "log", while_running=interrupt)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (tmp_path / "ended").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's word for it is Linux's; run on Linux")
def test_the_child_of_a_killed_process_ends(tmp_path: Path) -> None:
    parent_code = (
        "import os, sys, pathlib\n"
        "from grpo_verl_ext.runs.child_process import run_logged\n"
        "sleep = [sys.executable, '-c', 'import time; time.sleep(60)']\n"
        f"run_logged(sleep, pathlib.Path({str(tmp_path / 'log')!r}))\n"
    )
    parent, end = subprocess.Popen([sys.executable, "-c", parent_code]), time.monotonic() + 60
    try:
        while not (children := psutil.Process(parent.pid).children()):
            assert time.monotonic() < end
            time.sleep(0.1)
        time.sleep(0.5)  # past the child's first system call
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive


DEAF = (
    "import pathlib, signal, sys, time; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    "pathlib.Path(sys.argv[1]).touch(); time.sleep(60)"
)

COUNTS = """
import pathlib, signal, sys, time
interrupts = []
signal.signal(signal.SIGINT, lambda *_: interrupts.append(1))
pathlib.Path(sys.argv[1]).touch()
while not interrupts:
    time.sleep(0.05)
time.sleep(1)
pathlib.Path(sys.argv[2]).write_text(str(len(interrupts)))
"""
RUNS = """
import signal, sys, time
from grpo_verl_ext.runs.child_process import run_to_its_end
def late(*_):
    time.sleep(0.3)
    raise KeyboardInterrupt
signal.signal(signal.SIGINT, late)
run_to_its_end([sys.executable, *sys.argv[1:]])
"""


def test_a_terminals_ctrl_c_reaches_the_child_once(tmp_path: Path) -> None:
    """A second one would interrupt the removal of what the child had begun."""
    up, count = tmp_path / "up", tmp_path / "count"
    parent = subprocess.Popen(
        [sys.executable, "-c", RUNS, "-c", COUNTS, str(up), str(count)],
        start_new_session=True,
        stderr=subprocess.DEVNULL,
    )
    while not up.exists():
        assert parent.poll() is None
        time.sleep(0.1)
    os.killpg(parent.pid, signal.SIGINT)
    parent.wait(30)
    assert count.read_text() == "1"


def press(after: float) -> None:
    threading.Timer(after, os.kill, (os.getpid(), signal.SIGINT)).start()


def test_a_child_that_does_not_listen(tmp_path: Path) -> None:
    pressed: list[float] = []

    def first() -> None:
        if (tmp_path / "up").exists() and not pressed:
            pressed.append(time.monotonic())
            press(after=1)
            raise KeyboardInterrupt

    mark = str(tmp_path)
    command, environment = [sys.executable, "-c", DEAF, str(tmp_path / "up")], {**os.environ, MARK: mark}
    with pytest.raises(KeyboardInterrupt):
        run_to_its_end(command, while_running=first, env=environment)
    assert 1 <= time.monotonic() - pressed[0] < 20
    assert marked(mark) == []


SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"]


def started(code: list[str], **environment: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(code, env={**os.environ, **environment}, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_only_marked_processes_are_ended() -> None:
    mine, others, nobodys = (started(SLEEP, **own) for own in ({MARK: "/mine"}, {MARK: "/mine/not"}, {}))
    try:
        assert [process.pid for process in marked("/mine")] == [mine.pid]
        end_leftovers("/mine", patience=0.1)
        assert mine.poll() is not None
        assert others.poll() is None
        assert nobodys.poll() is None
    finally:
        for process in (mine, others, nobodys):
            process.kill()
            process.wait()


def test_one_that_does_not_listen_is_killed_and_ctrl_c_ends_the_patience() -> None:
    ignore = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    process = started([*SLEEP[:2], f"{ignore}; {SLEEP[2]}"], **{MARK: "/deaf"})
    press(after=1)
    with pytest.raises(KeyboardInterrupt):
        end_leftovers("/deaf", patience=50)
    assert not psutil.pid_exists(process.pid)
    assert marked("/deaf") == []


def test_one_that_ends_by_itself_is_left_to_it() -> None:
    ends = f"{SLEEP[2].replace('60', '1')}; print('ended')"
    process = started([*SLEEP[:2], ends], **{MARK: "/soon"})
    end_leftovers("/soon", patience=20)
    assert process.stdout is not None
    assert process.stdout.read() == b"ended\n"
