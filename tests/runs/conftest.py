"""The examples are scripts, which import each other from their own folder."""

from pathlib import Path

import pytest


@pytest.fixture
def examples(monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = Path(__file__).parents[2] / "examples"
    monkeypatch.syspath_prepend(folder)
    return folder
