"""Test that `grpo-verl-ext train` trains as the quick start's command does, and asks the workers first."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from grpo_verl_ext.runs.metrics import TRAINED, read_metrics

pytestmark = [pytest.mark.e2e, pytest.mark.long]

SHORT = ("trainer.total_training_steps=1", "trainer.save_freq=-1", "trainer.val_before_train=false")
COMMAND = (
    str(Path(sys.executable).with_name("grpo-verl-ext")),
    "train",
    "gvpo",
    "+platform=cpu",
    "+task=chain_sum",
    "trainer.test_freq=-1",
    *SHORT,
)


def run(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    words = [*COMMAND, "trainer.logger=[console,file]", f"hydra.run.dir={folder / 'hydra'}", *more]
    environment = {**os.environ, "VERL_FILE_LOGGER_PATH": str(folder / "metrics.jsonl")}
    return subprocess.run(words, capture_output=True, text=True, env=environment, timeout=900, check=False)


@pytest.mark.usefixtures("chain_sum")
def test_it_trains(tmp_path: Path) -> None:
    finished = run(tmp_path)
    assert finished.returncode == 0, finished.stderr[-4000:]
    assert finished.stdout.startswith("gvpo: arXiv 2504.19599\n")
    assert TRAINED in read_metrics([tmp_path / "metrics.jsonl"])[1]


@pytest.mark.usefixtures("chain_sum")
def test_a_worker_with_another_python_is_refused_before_a_rollout(tmp_path: Path) -> None:
    """One whose verl is told to load no plugin stands for one that lacks the package."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\nVERL_USE_EXTERNAL_PLUGINS=none exec python "$@"\n')
    python.chmod(0o755)
    refused = run(tmp_path, f"+ray_kwargs.ray_init.runtime_env.py_executable={python}")
    assert refused.returncode == 1
    assert "grpo_verl_ext: a worker on the node" in refused.stderr
    assert "VERL_USE_EXTERNAL_PLUGINS is none there" in refused.stderr
    assert not (tmp_path / "metrics.jsonl").exists()
