"""Fixture: a folder as ``smollm2_model.py`` makes it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from grpo_verl_ext.tasks.chain_sum.model import build_model, build_tokenizer
from grpo_verl_ext.tasks.chain_sum.prepared import TaskSettings
from grpo_verl_ext.tasks.folders import PreparedFolder


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder, with a tiny model."""

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
    return PreparedFolder(folder).make({"sha256": "0"}, build, force=False).folder
