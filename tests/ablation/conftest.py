"""Fixture: a grid's folder as its runs leave it."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from grpo_verl_ext.ablation.grid import GridSettings
from grpo_verl_ext.ablation.results import keep_grid
from grpo_verl_ext.runs.metrics import TRAINED


@pytest.fixture
def grid_of(tmp_path: Path) -> Callable[..., None]:
    """Keep a grid of two steps in ``tmp_path``: variants, the baseline first, metrics, and more settings."""

    def keep(variants: list[str], metrics: list[str], **more: Any) -> None:
        given: dict[str, Any] = {"base": [], "seeds": [1, 2], "baseline": variants[:1], **more}
        axes: dict[str, dict[str, list[str]]] = {"algo": {variant: [] for variant in variants}}
        keep_grid(GridSettings(folder=str(tmp_path), steps=2, axes=axes, metrics=metrics, **given))

    return keep


@pytest.fixture
def leave(tmp_path: Path) -> Callable[[str, int, Mapping[int, Mapping[str, float]]], Path]:
    """Write what a variant's run with a seed has logged at each step; returns the run's folder.

    Every step but the validation before the first is a training step.
    """

    def leave(variant: str, seed: int, metrics: Mapping[int, Mapping[str, float]]) -> Path:
        run = tmp_path / variant / f"seed-{seed}"
        run.mkdir(parents=True, exist_ok=True)
        lines = [
            json.dumps({"step": step, "data": {**data, **({TRAINED: step} if step else {})}})
            for step, data in metrics.items()
        ]
        (run / "attempt-1.jsonl").write_text("".join(f"{line}\n" for line in lines))
        return run

    return leave
