"""Test Ctrl-C at each stage of the quick start: status 130, one line, no process left, and a resume."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import interrupted
import pytest
from interrupted import ROOT, quickstart

IN_A_SESSION = {"stderr": subprocess.PIPE, "text": True, "start_new_session": True}
STAGES = {"a training starts": "0", "it trains": "3", "the curve is drawn": "quickstart:draw_learning_curve"}


@pytest.mark.ci
def test_while_it_trains_and_after(tmp_path: Path) -> None:
    words = ("--out", str(tmp_path / "run"), "--steps", "5", "data.seed=1")
    said = tmp_path / "said"
    for stage in STAGES.values():
        interrupted.interrupt(interrupted.start(quickstart, stage, *words, folder=said), said)
    last = interrupted.start(quickstart, None, *words, folder=said)
    last.join(interrupted.SECONDS)
    assert last.exitcode == 0, (said / "stderr").read_text()
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["steps"] == 5
    assert len(list((tmp_path / "run").glob("attempt-*.log"))) == 4
    assert {path.name for path in tmp_path.iterdir()} == {"said", "run.lock", "run"}


@pytest.mark.ci
def test_while_the_task_is_prepared(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    environment = {**os.environ, "GRPO_VERL_EXT_CACHE": str(cache), "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "examples/quickstart.py", "--out", str(tmp_path / "run")]
    process = subprocess.Popen(words, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, **IN_A_SESSION)
    end = time.monotonic() + interrupted.SECONDS
    while not list(cache.rglob(".seed-1.partial")):
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.1)
    session = interrupted.processes_of(process.pid)
    assert len(session) == 2
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=interrupted.SECONDS)
    assert process.returncode == 130
    assert said.strip() == interrupted.RESUME
    assert not any(each.is_running() for each in session)
    assert [path.name for path in (cache / "chain_sum").iterdir()] == ["seed-1.lock"]


def test_while_it_is_installed(tmp_path: Path) -> None:
    """Its installation is a stand-in that waits, and starts nothing.

    bash goes on after an interruption during which a child ended well.
    """
    (tmp_path / "examples").mkdir()
    for file in (ROOT / "examples").glob("quickstart*"):
        shutil.copy(file, tmp_path / "examples")
    (tmp_path / "examples" / "setup_cpu.sh").write_text(": > installing; exec sleep 60\n")
    words, environment = ["bash", "examples/quickstart.sh"], {**os.environ, "PYTHON": sys.executable}
    process = subprocess.Popen(words, cwd=tmp_path, env=environment, **IN_A_SESSION)
    while not (tmp_path / "installing").exists():
        assert process.poll() is None
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said.strip()) == (130, interrupted.RESUME)
    assert not interrupted.processes_of(process.pid)
