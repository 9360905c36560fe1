"""Fixture: a dump as verl writes it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Write = Callable[..., Path]


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
