"""Fixtures shared by all tests; what they do to a process's global state is undone."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from processes import Python


@pytest.fixture(scope="session")
def python() -> Python:
    """Run a piece of Python in a fresh process, with extra environment variables; never raises on failure."""

    def run(code: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            capture_output=True,
            text=True,
            timeout=180,
            env={**os.environ, **env},
            check=False,
        )

    return run


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen2 with random weights, and the embedded task's tokenizer: a token is a byte."""
    # transformers takes seconds to import; most tests need no model.
    from grpo_verl_ext.tasks.chain_sum.model import build_model
    from grpo_verl_ext.tasks.chain_sum.settings import Settings
    from grpo_verl_ext.tasks.chain_sum.tokenizer import build_tokenizer

    folder = tmp_path_factory.mktemp("policy")
    tokenizer = build_tokenizer()
    tiny = Settings(width=32, layers=1, heads=1, feed_forward=32)
    build_model(tiny, tokenizer, seed=1).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
