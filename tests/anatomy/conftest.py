"""A dump as verl writes it, and a tiny policy."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo_verl_ext.tasks.chain_sum.model import build_model
from grpo_verl_ext.tasks.chain_sum.settings import Settings
from grpo_verl_ext.tasks.chain_sum.tokenizer import build_tokenizer

TINY = Settings(width=32, layers=1, heads=1, feed_forward=32)

Write = Callable[..., Path]


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Qwen2's architecture with random weights, and the embedded task's tokenizer: a token is a byte."""
    folder = tmp_path_factory.mktemp("policy")
    tokenizer = build_tokenizer()
    build_model(TINY, tokenizer, seed=1).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a step's file: (group, score, text of the response) each; returns the dump's folder."""

    def write(step: int, responses: list[tuple[str, float, str]], **more: Any) -> Path:
        folder = tmp_path / "rollouts"
        folder.mkdir(exist_ok=True)
        lines = [
            json.dumps(
                {
                    "input": "user\n1+1=?\nassistant\n",
                    "output": text,
                    "gts": "2",
                    "score": score,
                    "step": step,
                    "uid": f"{group}_{number}_0",
                    **more,
                },
                ensure_ascii=False,
            )
            for number, (group, score, text) in enumerate(responses)
        ]
        (folder / f"{step}.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return folder

    return write
