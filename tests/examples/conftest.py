"""Fixture: a folder as ``smollm2_model.py`` makes it."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from grpo_verl_ext.tasks.folders import PreparedFolder


@pytest.fixture(scope="module")
def converted(policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder, with a tiny model."""

    def build(folder: Path) -> Mapping[str, Any]:
        shutil.copytree(policy, folder, dirs_exist_ok=True)
        (folder / "LICENSE").write_text("a licence")
        (folder / "SOURCE.md").write_text("a source\n")
        return {"found": {}}

    folder = tmp_path_factory.mktemp("converted") / "model"
    return PreparedFolder(folder).make({"sha256": "0"}, build, force=False).folder
