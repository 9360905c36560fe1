"""Test that a declared grid whose records were removed keeps its declaration, and counts its beginnings."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from grpo_verl_ext.ablation.results import read_results, write_table
from grpo_verl_ext.runs.verl_run import TRAINED
from grpo_verl_ext.utils.documents import as_plain

GRID: dict[str, Any] = {
    "axes": {"algo": {"a": [], "b": [], "bad": []}},
    "seeds": [1, 2, 3],
    "baseline": ["a"],
    "primary": {"metric": "acc", "measure": "final"},
    "margin": 0.05,
    "expect": [{"variant": "b", "is": "higher"}],
    "control": {"variant": "bad", "is": "lower"},
}


@pytest.fixture
def grid(grid_file, monkeypatch: pytest.MonkeyPatch, verl: set[str], uncomposed: None) -> Path:
    """The grid's file; every run is finished from commit abc."""
    monkeypatch.setattr("grpo_verl_ext.ablation.grid.git_revision", lambda: "abc")
    monkeypatch.setattr("grpo_verl_ext.ablation.run.git_revision", lambda: "abc")
    return grid_file(**GRID)


@pytest.mark.parametrize("removed", ["out", "out/a", "one run"])
def test_all_records_removed(ablate, grid: Path, removed: str) -> None:
    """Begun twice if none was left; a run that is trained again beside the others is no new beginning."""
    out = grid.parent / "out"
    ablate("run", grid)
    assert len(read_results(out).beginnings) == 1
    assert "was begun" not in ablate("report", out).output
    if removed == "out/a":
        for variant in ("a", "b", "bad"):
            shutil.rmtree(out / variant)
    else:
        shutil.rmtree(out if removed == "out" else out / "a" / "seed-1")
    ablate("run", grid)
    assert len(read_results(out).beginnings) == (1 if removed == "one run" else 2)
    said = "the grid was begun 2 times, and the records of all but the last were removed: "
    assert (said in ablate("report", out).output) is (removed != "one run")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"git_revision": "def"}, "begun with the commit def, and now it is abc"),
        ({"versions": {"torch": "0"}}, "begun with the versions {'torch': '0'}, and now it is {"),
        ({"inputs": {"data.train_files": "0"}}, "begun with the model and data of hashes {'data.train_"),
    ],
)
def test_a_run_goes_on_with_what_it_was_begun_with(ablate, grid: Path, monkeypatch, changed, said) -> None:
    monkeypatch.setattr("grpo_verl_ext.ablation.run.inputs_of", lambda config: {"data.train_files": "1"})
    ablate("run", grid)
    run = grid.parent / "out" / "b" / "seed-2"
    (run / "attempt-1.jsonl").write_text(json.dumps({"step": 1, "data": {TRAINED: 1}}) + "\n")
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(record | changed))
    assert f"{run} was {said}" in ablate("run", grid, status=1).output
    (run / "run.json").write_text(json.dumps(record))
    ablate("run", grid)


@pytest.mark.parametrize("words", [(), ("primary=null", "margin=null", "expect=[]", "control=null")])
def test_a_run_without_a_step_begins_anew(ablate, grid: Path, monkeypatch, verl: set[str], words) -> None:
    """Whether it is declared or not."""
    verl |= {"a", "b", "bad"}
    ablate("run", grid, *words, status=1)
    verl.clear()
    monkeypatch.setattr("grpo_verl_ext.ablation.run.git_revision", lambda: "def")
    ablate("run", grid, *words)
    records = [json.loads(file.read_text()) for file in (grid.parent / "out").glob("*/*/run.json")]
    assert [record["git_revision"] for record in records] == ["def"] * 9


def test_the_table_and_the_report_keep_it(ablate, grid: Path, tmp_path: Path) -> None:
    for _ in range(3):
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        ablate("run", grid)
    results = read_results(tmp_path / "out")
    (tmp_path / "kept").mkdir()
    write_table(results, tmp_path / "kept" / "metrics.parquet")
    kept = read_results(tmp_path / "kept")
    assert (kept.beginnings, as_plain(kept.settings)) == (results.beginnings, as_plain(results.settings))
    printed = ablate("report", tmp_path / "kept").output
    assert "the grid was begun 3 times" in printed
    assert printed.count("at commit abc") == 3
    begun = json.loads((tmp_path / "kept" / "report.json").read_text())["beginnings"]
    assert [each["commit"] for each in begun] == ["abc"] * 3
    (declaration,) = {each["declaration"] for each in begun}
    assert declaration in printed


def test_the_declaration_cannot_change_with_the_records_gone(ablate, grid: Path, tmp_path: Path) -> None:
    ablate("run", grid)
    shutil.rmtree(tmp_path / "out")
    for command in ("plan", "run"):
        refused = ablate(command, grid, "margin=0.1", status=1)
        assert "removed or not, were begun with margin: 0.05, and now it is 0.1" in refused.stderr
    ablate("run", grid, "margin=0.1", f"folder={tmp_path}/another")


def test_notes_that_are_something_else_are_left_in_place(ablate, grid: Path, tmp_path: Path) -> None:
    file = tmp_path / "out.beginnings.json"
    file.write_text("mine")
    said = ablate("run", grid, status=1).stderr
    assert f"{file} is not a list of when the grid was begun" in said
    assert file.read_text() == "mine"
