"""Test the example that makes responses with rewards, with a tiny task."""

import importlib
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from grpo_verl_ext.rewards.rules import correctness, format_reward
from grpo_verl_ext.tasks.chain_sum.prepared import TASKS, TaskSettings
from grpo_verl_ext.tasks.folders import read_parquet

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_starting_models_responses_have_the_rewards_of_the_task(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny: TaskSettings
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    example = importlib.import_module("chain_sum_rewarded")
    monkeypatch.setenv("GRPO_VERL_EXT_CACHE", str(tmp_path / "cache"))
    # Enough steps to end a response now and then.
    monkeypatch.setitem(TASKS, "chain_sum", replace(tiny, steps=60, slip_steps=0))
    monkeypatch.setattr(example, "PROMPTS", 3)
    monkeypatch.setattr(example, "RESPONSES", 2)
    monkeypatch.setattr(sys.modules["chain_sum_teacher"], "ROUNDS", 400)
    monkeypatch.setattr(sys, "argv", ["chain_sum_rewarded.py", str(tmp_path / "fixed"), "--seeds", "5"])
    example.main()
    file = tmp_path / "fixed" / "seed-5" / "test.parquet"
    rows = read_parquet(file)
    assert [len(row["extra_info"]["responses"]) for row in rows] == [2, 2, 2]
    for row in rows:
        truth, info = row["reward_model"]["ground_truth"], row["extra_info"]
        wanted = [correctness(text, truth) + format_reward(text) for text in info["responses"]]
        assert info["rewards"] == pytest.approx(wanted, rel=1e-12)
    before = file.stat().st_mtime_ns
    example.main()
    assert file.stat().st_mtime_ns == before
