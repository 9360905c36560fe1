"""Test that a second Ctrl-C ends what does not end by itself, and leaves no process."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from grpo_verl_ext.runs.child_process import MARK, end_leftovers, marked, run_to_its_end

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
    with pytest.raises(KeyboardInterrupt):
        run_to_its_end(
            [sys.executable, "-c", DEAF, str(tmp_path / "up")],
            while_running=first,
            env={**os.environ, MARK: mark},
        )
    assert 1 <= time.monotonic() - pressed[0] < 20
    assert marked(mark) == []


def test_those_that_are_waited_for(tmp_path: Path) -> None:
    mark = str(tmp_path)
    left = subprocess.Popen(
        [sys.executable, "-c", DEAF, str(tmp_path / "up")], env={**os.environ, MARK: mark}
    )
    while not (tmp_path / "up").exists():
        time.sleep(0.1)
    press(after=1)
    with pytest.raises(KeyboardInterrupt):
        end_leftovers(mark, patience=50)
    assert left.poll() is not None
    assert marked(mark) == []
