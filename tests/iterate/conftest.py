"""A tiny policy."""

from pathlib import Path

import pytest

from grpo_verl_ext.tasks.chain_sum.model import build_model
from grpo_verl_ext.tasks.chain_sum.settings import Settings
from grpo_verl_ext.tasks.chain_sum.tokenizer import build_tokenizer

TINY = Settings(width=32, layers=1, heads=1, feed_forward=32)


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Qwen2's architecture with random weights, and its tokenizer."""
    folder = tmp_path_factory.mktemp("policy")
    tokenizer = build_tokenizer()
    build_model(TINY, tokenizer, seed=1).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
