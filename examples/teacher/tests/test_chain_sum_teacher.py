"""Test the example that makes a teacher and its responses, with a tiny task."""

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from module_files import load_module
from transformers import AutoTokenizer

from grpo_verl_ext.tasks.chain_sum.model import build_tokenizer
from grpo_verl_ext.tasks.chain_sum.prepared import TASKS, TaskSettings
from grpo_verl_ext.tasks.folders import read_parquet

EXAMPLE = Path(__file__).parents[1] / "chain_sum_teacher.py"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny: TaskSettings) -> ModuleType:
    """The example's module, on a tiny task, with three prompts and two responses to each."""
    module = load_module(EXAMPLE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GRPO_VERL_EXT_CACHE", str(tmp_path / "cache"))
    # Enough steps to end a response now and then.
    monkeypatch.setitem(TASKS, "chain_sum", replace(tiny, steps=60, slip_steps=0))
    monkeypatch.setattr(module, "PROMPTS", 3)
    monkeypatch.setattr(module, "RESPONSES", 2)
    monkeypatch.setattr(module, "ROUNDS", 400)
    monkeypatch.setattr(module, "accuracy", lambda *_, **__: 0.5)  # it wants 512 prompts
    return module


def run(module: Any, monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), *words])
    module.main()


def test_a_teacher_and_its_responses(
    example: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run(example, monkeypatch, "joined", "--joined-digits", "--responses", "5")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "joined")
    assert len(tokenizer("12345")["input_ids"]) == 3
    train, test = (
        read_parquet(tmp_path / "joined" / "seed-5" / f"{each}.parquet") for each in ("train", "test")
    )
    assert [len(row["extra_info"]["responses"]) for row in train] == [2, 2, 2]
    assert all(row["extra_info"]["response"] for row in test)
    # In the policy's tokens, too, where two digits are two.
    texts = [text for row in train for text in row["extra_info"]["responses"]]
    assert max(map(len, build_tokenizer()(texts)["input_ids"])) < TASKS["chain_sum"].max_response_tokens
    before = (tmp_path / "joined" / "model.safetensors").stat().st_mtime_ns
    run(example, monkeypatch, "joined", "--joined-digits", "--responses", "5")
    assert "already there" in capsys.readouterr().out
    assert (tmp_path / "joined" / "model.safetensors").stat().st_mtime_ns == before


def test_a_teacher_that_never_ends_is_said(
    example: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(example, "ROUNDS", 0)
    with pytest.raises(SystemExit, match=r"responses to .* prompts do not end within"):
        run(example, monkeypatch, "joined", "--responses", "5")
    assert not (tmp_path / "joined" / "seed-5").exists()
