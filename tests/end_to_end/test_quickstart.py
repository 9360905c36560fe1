"""Test that the quick start, without installation, writes what it promises."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from limits import largest

from grpo_verl_ext.runs.verl_run import read_metrics

pytestmark = pytest.mark.e2e

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart.py"


@pytest.mark.ci
def test_what_it_writes_and_rollout_and_actor_agree(tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ["--out", str(out), "--algo", "ppo", "--steps", "3", "trainer.test_freq=3"]
    command = [sys.executable, str(QUICKSTART), *words]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert finished.returncode == 0, finished.stderr

    metrics = read_metrics([out / "attempt-1.jsonl"])
    accuracy = [metrics[step]["val-core/chain_sum/acc/mean@1"] for step in (0, 3)]
    summary = json.loads((out / "summary.json").read_text())
    assert summary["steps"] == 3
    assert summary["seconds"] > 0
    assert [summary["accuracy_before"], summary["accuracy_after"]] == accuracy
    assert f"{accuracy[1]:.3f} after 3 steps of ppo" in finished.stdout
    assert (out / "learning_curve.png").read_bytes().startswith(b"\x89PNG")

    assert largest(abs(metrics[step]["rollout_corr/kl"]) for step in (1, 2, 3)) < 1e-4
    assert metrics[3]["critic/vf_loss"] > 0, "verl's own PPO, with a critic"
    assert metrics[3]["critic/grad_norm"] > 0
    assert {f"val-aux/chain_sum/{part}/mean@1" for part in ("correctness", "format")} <= set(metrics[0])
