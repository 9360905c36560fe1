"""Fixtures for the recipe's scripts, which start grpo-verl-ext, too."""

import shutil
from pathlib import Path

import pytest
from scripts import files, notes, run, started  # noqa: F401


@pytest.fixture(autouse=True)
def ours(notes: Path) -> None:  # noqa: F811
    shutil.copy(notes / "python3", notes / "grpo-verl-ext")
