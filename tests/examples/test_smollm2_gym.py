"""Test the example that warm-starts SmolLM2 on a task of reasoning-gym, with a tiny model."""

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from module_files import load_module
from reasoning_gym_reward import score_whole_response
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_verl_ext.tasks.folders import read_parquet

EXAMPLE = Path(__file__).parents[2] / "examples" / "tasks" / "smollm2_gym.py"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch, converted: Path) -> ModuleType:
    """The example's module, with few rows and no step of a warm start."""
    pytest.importorskip("reasoning_gym", reason="pip install reasoning-gym runs it")
    module = load_module(EXAMPLE)
    for name, value in {"TRAIN_ROWS": 70, "TEST_ROWS": 5, "START": 0.0}.items():
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(module, "smollm2_folder", lambda: converted)
    return module


def test_each_seed_has_rows_and_a_model(
    example: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every answer is worth 1 and fits into the budget, and the model reads the sum alone."""
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), str(tmp_path / "gym"), "--seeds", "1", "2"])
    example.main()
    assert capsys.readouterr().out.count("after 0 steps") == 2
    example.main()
    assert capsys.readouterr().out == ""
    rows = {seed: read_parquet(tmp_path / "gym" / f"seed-{seed}" / "train.parquet") for seed in (1, 2)}
    assert [len(each) for each in rows.values()] == [70, 70]
    assert rows[1] != rows[2]
    model = tmp_path / "gym" / "seed-1" / "model"
    tokenizer = AutoTokenizer.from_pretrained(model)
    for row in rows[1]:
        answer = row["reward_model"]["ground_truth"]
        assert score_whole_response("", answer, answer, row["extra_info"])["acc"] == 1.0
        assert len(tokenizer.encode(answer)) < example.MAX_RESPONSE_TOKENS
        text = tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, tokenize=False)
        assert re.fullmatch(r"Find: \d [+-] \d = ", text)
        assert row["prompt"][0]["content"].endswith(text.removeprefix("Find:").rstrip())
    assert example.TEMPLATE in (model / "SOURCE.md").read_text()
    AutoModelForCausalLM.from_pretrained(model)
