"""Test that a declared grid whose records were removed keeps its declaration, and counts its beginnings."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from grpo_verl_ext.ablation import checks
from grpo_verl_ext.ablation.table import read_any, read_results, write_table
from grpo_verl_ext.cli import app
from grpo_verl_ext.runs.child_process import ProcessFailedError
from grpo_verl_ext.runs.metrics import TRAINED, Metrics
from grpo_verl_ext.runs.verl_run import VerlRun

GRID: dict[str, Any] = {
    "steps": 2,
    "base": [],
    "axes": {"algo": {"a": [], "b": [], "bad": []}},
    "seeds": [1, 2, 3],
    "baseline": ["a"],
    "metrics": ["acc"],
    "primary": {"metric": "acc", "measure": "final"},
    "margin": 0.05,
    "expect": [{"variant": "b", "is": "higher"}],
    "control": {"variant": "bad", "is": "lower"},
}


GRID_ALONE = ("steps", "base", "axes", "seeds", "baseline", "metrics")
"""Without a declaration."""


@pytest.fixture
def grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uncomposed: None) -> Path:
    """The grid's file; a stand-in for verl's process finishes every run, from commit abc."""

    def go_(run: VerlRun, on_metrics: Callable[[Metrics], None]) -> None:
        line = {"step": 2, "data": {TRAINED: 2, "acc": 0.5}}
        (run.folder / "attempt-1.jsonl").write_text(json.dumps(line) + "\n")

    monkeypatch.setattr(VerlRun, "go", go_)
    monkeypatch.setattr("grpo_verl_ext.ablation.grid.git_revision", lambda: "abc")
    monkeypatch.setattr("grpo_verl_ext.ablation.run._check_clean", lambda: None)
    (tmp_path / "grid.yaml").write_text(json.dumps({**GRID, "folder": str(tmp_path / "out")}))
    return tmp_path / "grid.yaml"


def ablate(*words: str) -> tuple[int, str]:
    ended = CliRunner().invoke(app, ["ablate", *words])
    assert ended.exception is None or isinstance(ended.exception, SystemExit), ended.exception
    return ended.exit_code, " ".join(ended.output.split())


@pytest.mark.parametrize("removed", ["out", "out/a", "one run"])
def test_all_records_removed(grid: Path, removed: str) -> None:
    """Begun twice if none was left; a run that is trained again beside the others is no new beginning."""
    out = grid.parent / "out"
    ablate("run", str(grid))
    assert len(read_results(out).beginnings) == 1
    assert "was begun" not in ablate("report", str(out))[1]
    if removed == "out/a":
        for variant in ("a", "b", "bad"):
            shutil.rmtree(out / variant)
    else:
        shutil.rmtree(out if removed == "out" else out / "a" / "seed-1")
    ablate("run", str(grid))
    assert len(read_results(out).beginnings) == (1 if removed == "one run" else 2)
    said = "the grid was begun 2 times, and the records of all but the last were removed: "
    assert (said in ablate("report", str(out))[1]) is (removed != "one run")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"git_revision": "def"}, "begun with the commit def, and now it is abc"),
        ({"versions": {"torch": "0"}}, "begun with the versions {'torch': '0'}, and now it is {"),
        (
            {"inputs": {"data.train_files": "0"}},
            "begun with the model and data of hashes {'data.train_files': '0'}",
        ),
    ],
)
def test_a_run_goes_on_with_what_it_was_begun_with(
    grid: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any], said: str
) -> None:
    monkeypatch.setattr("grpo_verl_ext.ablation.run.git_revision", lambda: "abc")
    monkeypatch.setattr(checks, "inputs_of", lambda config: {"data.train_files": "1"})
    ablate("run", str(grid))
    run = grid.parent / "out" / "b" / "seed-2"
    (run / "attempt-1.jsonl").write_text(json.dumps({"step": 1, "data": {TRAINED: 1}}) + "\n")
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(record | changed))
    status, printed = ablate("run", str(grid))
    assert status == 1
    assert f"{run} was {said}" in printed
    (run / "run.json").write_text(json.dumps(record))
    assert ablate("run", str(grid))[0] == 0


@pytest.mark.parametrize("declared", [True, False])
def test_a_run_that_failed_before_its_first_step_has_the_record_of_the_next_attempt(
    grid: Path, monkeypatch: pytest.MonkeyPatch, declared: bool
) -> None:
    if not declared:
        settings = {key: value for key, value in GRID.items() if key in GRID_ALONE}
        grid.write_text(json.dumps({**settings, "folder": str(grid.parent / "out")}))
    trained = VerlRun.go

    def fails(run: VerlRun, on_metrics: Callable[[Metrics], None]) -> None:
        raise ProcessFailedError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(VerlRun, "go", fails)
        patch.setattr("grpo_verl_ext.ablation.run.git_revision", lambda: "abc")
        assert ablate("run", str(grid))[0] == 1
    monkeypatch.setattr("grpo_verl_ext.ablation.run.git_revision", lambda: "def")
    assert VerlRun.go is trained
    assert ablate("run", str(grid), "--retry-failed")[0] == 0
    records = [json.loads(file.read_text()) for file in (grid.parent / "out").glob("*/*/run.json")]
    assert [record["git_revision"] for record in records] == ["def"] * 9


def test_the_table_and_the_report_keep_it(grid: Path, tmp_path: Path) -> None:
    for _ in range(3):
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        ablate("run", str(grid))
    results = read_results(tmp_path / "out")
    (tmp_path / "kept").mkdir()
    write_table(results, tmp_path / "kept" / "metrics.parquet")
    kept, _ = read_any(tmp_path / "kept")
    assert (kept.beginnings, kept.settings.as_dict()) == (results.beginnings, results.settings.as_dict())
    _, printed = ablate("report", str(tmp_path / "kept"))
    assert "the grid was begun 3 times" in printed
    assert printed.count("at commit abc") == 3
    begun = json.loads((tmp_path / "kept" / "report.json").read_text())["beginnings"]
    assert [each["commit"] for each in begun] == ["abc"] * 3
    (declaration,) = {each["declaration"] for each in begun}
    assert declaration in printed


def test_the_declaration_cannot_change_with_the_records_gone(grid: Path, tmp_path: Path) -> None:
    ablate("run", str(grid))
    shutil.rmtree(tmp_path / "out")
    for command in ("plan", "run"):
        status, printed = ablate(command, str(grid), "margin=0.1")
        assert "removed or not, were begun with margin: 0.05, and now it is 0.1" in printed
        assert status == 1
    assert ablate("run", str(grid), "margin=0.1", f"folder={tmp_path}/another")[0] == 0


def test_notes_that_are_something_else_are_left_in_place(grid: Path, tmp_path: Path) -> None:
    file = tmp_path / "out.beginnings.json"
    file.write_text("mine")
    status, printed = ablate("run", str(grid))
    assert f"{file} is not a list of when the grid was begun" in printed
    assert (status, file.read_text()) == (1, "mine")
