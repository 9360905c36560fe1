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
