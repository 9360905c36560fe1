"""Test that processes left by a run are ended, and no others."""

import os
import subprocess
import sys

import psutil

from grpo_verl_ext.runs.child_process import MARK, end_leftovers, marked

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"]


def started(code: list[str], **environment: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(code, env={**os.environ, **environment}, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_only_marked_processes_are_ended() -> None:
    mine, others, nobodys = (
        started(SLEEP, **{MARK: "/mine"}),
        started(SLEEP, **{MARK: "/mine/not"}),
        started(SLEEP),
    )
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


def test_one_that_does_not_listen_is_killed() -> None:
    ignore = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    process = started([*SLEEP[:2], f"{ignore}; {SLEEP[2]}"], **{MARK: "/deaf"})
    end_leftovers("/deaf", patience=0)
    assert not psutil.pid_exists(process.pid)


def test_one_that_ends_by_itself_is_left_to_it() -> None:
    ends = f"{SLEEP[2].replace('60', '1')}; print('ended')"
    process = started([*SLEEP[:2], ends], **{MARK: "/soon"})
    end_leftovers("/soon", patience=20)
    assert process.stdout is not None
    assert process.stdout.read() == b"ended\n"
