"""Fixtures: commands, a grid's folder as its runs leave it, and the report on declared comparisons."""

import json
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import Result
from omegaconf import OmegaConf
from typer.testing import CliRunner

from grpo_verl_ext import cli
from grpo_verl_ext.ablation import terminal
from grpo_verl_ext.ablation.declaration import Expectation, GridSettings, Primary
from grpo_verl_ext.ablation.grid import keep_grid
from grpo_verl_ext.ablation.report import Report
from grpo_verl_ext.ablation.results import CheckResult, Results, RunResult, Verdict
from grpo_verl_ext.runs.child_process import ProcessFailedError
from grpo_verl_ext.runs.verl_run import TRAINED, Metrics, VerlRun


@pytest.fixture
def ablate() -> Callable[..., Result]:
    """Run a command that ends with this status, and without a traceback."""

    def ablate(*words: object, status: int = 0) -> Result:
        ended = CliRunner().invoke(cli.app, ["ablate", *map(str, words)])
        assert ended.exception is None or isinstance(ended.exception, SystemExit), ended.exception
        assert ended.exit_code == status, ended.output
        return ended

    return ablate


@pytest.fixture
def uncomposed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no run of a grid composed and checked."""
    composed = lambda runs: {run.name: OmegaConf.create() for run in runs}  # noqa: E731
    monkeypatch.setattr(terminal, "compose_runs", composed)
    monkeypatch.setattr(terminal, "check_runs", lambda *_, here: None)


@pytest.fixture
def grid_file(tmp_path: Path) -> Callable[..., Path]:
    """Write the file of a grid of two steps with these keys, but those that are None."""

    def write(**keys: object) -> Path:
        usual = {"folder": str(tmp_path / "out"), "steps": 2, "base": [], "metrics": ["acc"]}
        file, content = tmp_path / "grid.yaml", usual | keys
        file.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))
        return file

    return write


@pytest.fixture
def verl(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """A stand-in for verl's process finishes every run but those of the variants in this set, which fail."""
    failing: set[str] = set()

    def go(run: VerlRun, on_metrics: Callable[[Metrics], None]) -> None:
        if run.folder.parent.name in failing:
            raise ProcessFailedError("the disk is full, says verl\nended with status 1")
        line = {"step": run.steps, "data": {TRAINED: run.steps, "acc": 0.5}}
        (run.folder / "attempt-1.jsonl").write_text(json.dumps(line) + "\n")
        on_metrics(run.metrics())

    monkeypatch.setattr(VerlRun, "go", go)
    return failing


@pytest.fixture
def grid_of(tmp_path: Path) -> Callable[..., GridSettings]:
    """Keep a grid of two steps: variants, the baseline first, metrics, and more settings."""

    def keep(variants: list[str], metrics: list[str], folder: Path = tmp_path, **more: Any) -> GridSettings:
        axes: dict[str, dict[str, list[str]]] = {"algo": {variant: [] for variant in variants}}
        usual = {"steps": 2, "base": [], "seeds": [1, 2], "baseline": variants[:1], "axes": axes}
        settings = GridSettings(folder=str(folder), metrics=metrics, **{**usual, **more})
        keep_grid(settings)
        return settings

    return keep


@pytest.fixture
def leave(tmp_path: Path) -> Callable[..., Path]:
    """Write what a variant's run with a seed has logged at each step; returns the run's folder.

    Every step but the validation before the first is a training step.
    """

    def leave(
        variant: str, seed: int, metrics: Mapping[int, Mapping[str, float]], folder: Path = tmp_path
    ) -> Path:
        run = folder / variant / f"seed-{seed}"
        run.mkdir(parents=True, exist_ok=True)
        lines = [
            json.dumps({"step": step, "data": {**data, **({TRAINED: step} if step else {})}})
            for step, data in metrics.items()
        ]
        (run / "attempt-1.jsonl").write_text("".join(f"{line}\n" for line in lines))
        return run

    return leave


PRIMARY = "gold_response/probability"


@pytest.fixture
def declared(tmp_path: Path, grid_of) -> Report:
    """Five verdicts with sentences as long as real ones, a missed check and a passed control.

    The differences are −0.1, 0, 0.1, 0.2 and 0.3 with the first seed, and 0.02 more with the second.
    """
    outcomes = {"dapo": "undecided", "dr_grpo": "equal within the margin", "gvpo": "shown"}
    outcomes |= {"gvpo_at_the_reference": "opposite", "ppo": "not exercised"}
    variants = ["grpo", *outcomes]
    expect = [Expectation(variant, "higher") for variant in outcomes]
    claims = {"primary": Primary(PRIMARY, "area"), "margin": 0.05, "expect": expect}
    settings = grid_of(variants, ["val/acc"], tmp_path / "declared", **claims)
    took = {"timing_s/step": 1.5, "perf/total_num_tokens": 7.0, "actor/perf/max_memory_allocated_gb": 3.0}
    metrics = {step: {PRIMARY: step / 4, "val/acc": step / 8, **took} for step in range(3)}
    runs = [RunResult(variant, seed, "finished") for seed in (1, 2) for variant in variants]
    columns = ["run", "variant", "seed", "step", "metric", "value"]
    rows = [
        (run.name, run.variant, run.seed, step, *each)
        for run, step in product(runs, metrics)
        for each in metrics[step].items()
    ]
    results = Results(settings, runs, pd.DataFrame(rows, columns=columns))
    verdicts = []
    for place, (variant, outcome) in enumerate(outcomes.items()):
        first = place / 10 - 0.1
        sentence = f"{variant} − grpo, area of {PRIMARY}, 12 seeds: {first:+.3f}: {outcome}; p = 0.123"
        sentence += " after Holm; equality within ±0.05: p = 0.0021; 0.05 needs 7 more starts"
        verdicts.append(
            Verdict(
                **{"variant": variant, "against": "grpo", "measure": "area", "expected": "higher"},
                **{"name": f"{variant} − grpo, area of {PRIMARY}", "weights": {variant: 1, "grpo": -1}},
                **{
                    "outcome": outcome,
                    "label": {"shown": "higher", "opposite": "lower"}.get(outcome, outcome),
                    "sentence": sentence,
                    "by_seed": {1: first, 2: first + 0.02},
                },
                **{"difference": first + 0.01, "low": first - 0.115, "high": first + 0.135},
            )
        )
    checks = [
        CheckResult("actor/pg_clipfrac, mean, at least 0.01", "ppo", 0.009962, False, False, "missed"),
        CheckResult("lr1e-3 lower than grpo", "lr1e-3", -0.25, True, True, "passed"),
    ]
    return Report(results, judged=(checks, verdicts))
