"""Fixtures: prepared folders with barely trained models, shared by tests that only read them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from grpo_verl_ext.tasks.chain_sum.model import build_model, build_tokenizer
from grpo_verl_ext.tasks.chain_sum.prepare import prepare_chain_sum
from grpo_verl_ext.tasks.chain_sum.prepared import TaskManifest, TaskSettings
from grpo_verl_ext.tasks.folders import FoundManifest, PreparedFolder, PreparedOutcome

TINY = TaskSettings(
    max_terms=4,
    train_problems=30,
    test_problems=9,
    width=32,
    layers=1,
    heads=1,
    feed_forward=32,
    steps=3,
    slip_steps=1,
    batch_size=4,
    workers=2,
)


@pytest.fixture(scope="session")
def tiny() -> TaskSettings:
    return TINY


@pytest.fixture(scope="session")
def tiny_prepared(tmp_path_factory: pytest.TempPathFactory) -> PreparedOutcome[TaskManifest]:
    root: Path = tmp_path_factory.mktemp("cache")
    return prepare_chain_sum(7, settings=TINY, root=root)


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as ``prepare smollm2`` makes it, with a tiny model."""

    def build(folder: Path) -> Mapping[str, Any]:
        tokenizer = build_tokenizer()
        build_model(
            TaskSettings(width=32, layers=1, heads=1, feed_forward=32), tokenizer, seed=1
        ).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        (folder / "LICENSE").write_text("a licence")
        (folder / "SOURCE.md").write_text("a source\n")
        return {"found": {}}

    folder = tmp_path_factory.mktemp("converted") / "model"
    return PreparedFolder(folder, FoundManifest).make({"sha256": "0"}, build, force=False).folder
