"""Test that the compact file holds all that a report reads, is written whole, and is refused when corrupt."""

import base64
import json
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from grpo_verl_ext.ablation.declaration.grid import AblationError, GridSettings
from grpo_verl_ext.ablation.running.results import (
    Results,
    RunResult,
    gathered,
    read_any,
    read_compact,
    read_results,
    write_compact,
)
from grpo_verl_ext.ablation.running.state import State
from grpo_verl_ext.cli import app


@pytest.fixture
def folder(tmp_path: Path, grid_of, leave) -> Path:
    """Finished runs, one with a record, responses and NaN; one that is corrupt, one that has only begun."""
    grid_of(["base", "other"], ["acc"], right_above=0.5)
    run = leave("base", 1, {0: {"acc": 0.1}, 1: {"acc": math.nan, "loss": 1e-9}, 2: {"acc": 0.3, "loss": 2}})
    record = {"overrides": ["a=1"], "steps": 2, "git_revision": None, "versions": {"verl": "0.9.1"}}
    (run / "run.json").write_text(json.dumps(record))
    row = {"input": "p\u2028", "output": "é\n", "gts": {"a": [1]}, "score": 1, "step": 2, "uid": "a_0_0"}
    for name in ("validation", "rollouts"):
        (run / name).mkdir()
        (run / name / "2.jsonl").write_text(json.dumps(row) + "\n")
    leave("other", 1, {1: {"acc": 0.2}, 2: {}})
    leave("other", 2, {1: {"acc": 0.2}})
    corrupt = leave("base", 2, {1: {"acc": 0.2}})
    (corrupt / "attempt-1.jsonl").write_text("{\n")
    return tmp_path


def test_what_is_read_back_is_what_was_written(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("kept") / "new" / "runs.json"
    results = read_results(folder)
    assert [run.state.value for run in results.runs] == ["finished", "finished", "unreadable", "begun"]
    write_compact(results, file)
    back = read_compact(file)
    assert back.runs == results.runs
    assert logged(back) == logged(results)
    assert back.settings.as_dict() == results.settings.as_dict()
    assert str(folder) not in file.read_text(), "the file is shown to others"
    assert back.runs[0].record == results.runs[0].record
    assert len(back.runs[0].samples) == 1
    json.loads(file.read_text(), parse_constant=pytest.fail)


def logged(results: Results) -> list[tuple[object, ...]]:
    """All rows of the table; values by repr, for NaN is not equal to itself."""
    rows = results.table.astype({"value": object}).itertuples(index=False)
    return sorted((*row[:-1], repr(float(row[-1]))) for row in rows)


values = st.floats(allow_infinity=False, allow_nan=True, width=64)
metrics = st.dictionaries(st.integers(0, 5), st.dictionaries(st.sampled_from("abcd"), values))


@given(metrics=metrics)
@settings(derandomize=True, deadline=None)
def test_metrics_survive_whatever_steps_have_them(tmp_path_factory: pytest.TempPathFactory, metrics) -> None:
    file = tmp_path_factory.getbasetemp() / "any.json"
    grid = GridSettings(
        folder="f", steps=1, base=[], axes={"a": {"b": []}}, seeds=[1], baseline=["b"], metrics=["a"]
    )
    results = gathered(grid, [(RunResult("b", 1, State.FINISHED), metrics)])
    wanted = sorted(
        ("b", 1, step, name, repr(float(value)))
        for step, own in metrics.items()
        for name, value in own.items()
    )
    assert logged(results) == wanted
    write_compact(results, file)
    assert logged(read_compact(file)) == wanted
    file.write_text(json.dumps(as_earlier_versions_wrote_it(results)))
    assert logged(read_compact(file)) == wanted


def as_earlier_versions_wrote_it(results: Results) -> dict[str, Any]:
    """Each run has its own metrics, in columns by the steps that have them; NaN is null."""
    runs = []
    for run in results.runs:
        rows = results.table[(results.table["variant"] == run.variant) & (results.table["seed"] == run.seed)]
        groups = [
            {
                "steps": own["step"].tolist(),
                "values": {name: [None if math.isnan(each) else each for each in own["value"].tolist()]},
            }
            for name, own in rows.groupby("metric", observed=True, sort=False)
        ]
        plain = vars(run) | {"record": run.record and vars(run.record), "samples": [*map(vars, run.samples)]}
        runs.append(plain | {"metrics": groups})
    return {"grid": results.settings.as_dict(), "runs": runs}


def test_a_file_of_an_earlier_version_is_read(folder: Path) -> None:
    results = read_results(folder)
    (folder / "kept.json").write_text(json.dumps(as_earlier_versions_wrote_it(results)))
    back = read_compact(folder / "kept.json")
    assert back.runs == results.runs
    assert logged(back) == logged(results)


def test_each_metric_is_one_line(folder: Path) -> None:
    write_compact(read_results(folder), folder / "runs.json")
    lines = (folder / "runs.json").read_text().splitlines()
    metrics = [json.loads(line.strip().partition(":")[0]) for line in lines if '"value": "' in line]
    assert sorted(metrics) == sorted(read_results(folder).table["metric"].unique())
    assert {"acc", "loss", "responses/right"} < {*metrics}


def test_a_report_of_the_file_is_that_of_the_folder(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    kept = tmp_path_factory.mktemp("kept")
    command = ["ablate", "report", str(folder), "--compact", str(kept / "runs.json")]
    finished = CliRunner().invoke(app, command)
    assert finished.exit_code == 0, finished.output
    assert finished.output.endswith(f"{kept / 'runs.json'}\n")
    for source in (kept / "runs.json", kept):
        again = CliRunner().invoke(app, ["ablate", "report", str(source)])
        assert again.exit_code == 0, again.output
        for name in ("report.md", "report.csv", "report.json", "report.html", "curve-acc.svg"):
            assert (kept / name).read_text() == (folder / name).read_text(), name
            (kept / name).unlink()


def test_a_folder_of_runs_wins_over_a_compact_file_in_it(folder: Path, leave) -> None:
    write_compact(read_results(folder), folder / "runs.json")
    leave("other", 2, {2: {"acc": 0.5}})
    results, at = read_any(folder)
    assert (results.runs[3].state, at) == (State.FINISHED, folder)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", "{}", '{"grid": {}, "runs": []}', '{"grid": 3, "runs": [3]}']
)
def test_another_file_is_refused_and_left(tmp_path: Path, text: str) -> None:
    file = tmp_path / "runs.json"
    file.write_text(text)
    for source in (file, tmp_path):
        refused = CliRunner().invoke(app, ["ablate", "report", str(source)])
        assert refused.exit_code == 1
        assert "runs.json is not a file that `ablate report --compact` wrote" in refused.stderr
        assert refused.stderr.count("\n") == 1
    assert file.read_text() == text


SPOILED = [
    {"state": "well"},
    {"metrics": [{"steps": [1, 2], "values": {"acc": [0.5]}}]},
    {"metrics": [{"steps": ["1"], "values": {"acc": [0.5]}}]},
    {"metrics": {"1": {"acc": 0.5}}},
    {"samples": [{"prompt": "p"}]},
    {"record": {"overrides": []}},
    {"seed": "1"},
    {"seed": 3},
    {"variant": "another"},
]


@pytest.mark.parametrize("earlier", [False, True])
@pytest.mark.parametrize("change", SPOILED)
def test_a_spoiled_run_is_refused(folder: Path, change: dict[str, object], earlier: bool) -> None:
    file = folder / "kept.json"
    results = read_results(folder)
    write_compact(results, file)
    content = as_earlier_versions_wrote_it(results) if earlier else json.loads(file.read_text())
    content["runs"][0].update(change)
    file.write_text(json.dumps(content))
    with pytest.raises(AblationError, match=r"kept\.json is not a file that"):
        read_compact(file)


def packed(*numbers: int) -> str:
    return base64.b64encode(zlib.compress(np.array(numbers, "<i4").tobytes())).decode()


@pytest.mark.parametrize(
    "run", ["", "eJwDAAAAAAE=", "no base64", "AAAA", packed(0), packed(0, 0, 4), packed(-1, 0, 0), 3, None]
)
def test_a_spoiled_column_is_refused(folder: Path, run: object) -> None:
    """``acc`` of three runs with 7 rows; the runs are 0 to 3."""
    file = folder / "kept.json"
    write_compact(read_results(folder), file)
    content = json.loads(file.read_text())
    content["metrics"]["acc"]["run"] = run
    file.write_text(json.dumps(content))
    with pytest.raises(AblationError, match=r"kept\.json is not a file that"):
        read_compact(file)


def test_a_write_that_fails_leaves_the_old_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = folder / "runs.json"
    file.write_text("old")
    results = read_results(folder)

    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(
        AblationError, match=r"--compact is .*runs\.json, which cannot be written: no space left"
    ):
        write_compact(results, file)
    assert file.read_text() == "old"
