"""Test that a report's table holds all that a report reads, is written whole, and is refused when corrupt."""

import copy
import json
import math
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from grpo_verl_ext.ablation.grid import AblationError
from grpo_verl_ext.ablation.results import Results, read_results, read_table, write_table
from grpo_verl_ext.utils.documents import as_plain


@pytest.fixture
def folder(tmp_path: Path, grid_of, leave) -> Path:
    """Finished runs, one with a record and NaN; one that is corrupt, one that has only begun."""
    grid_of(["base", "other"], ["acc"])
    run = leave("base", 1, {0: {"acc": 0.1}, 1: {"acc": math.nan, "loss": 1e-9}, 2: {"acc": 0.3, "loss": 2}})
    record = {"overrides": ["a=1"], "steps": 2, "git_revision": None, "versions": {"verl": "0.9.1"}}
    (run / "run.json").write_text(json.dumps(record))
    leave("other", 1, {1: {"acc": 0.2}, 2: {}})
    leave("other", 2, {1: {"acc": 0.2}})
    corrupt = leave("base", 2, {1: {"acc": 0.2}})
    (corrupt / "attempt-1.jsonl").write_text("{\n")
    return tmp_path


def test_what_is_read_back_is_what_was_written(folder: Path, tmp_path: Path) -> None:
    file, results = tmp_path / "kept.parquet", read_results(folder)
    assert [run.state for run in results.runs] == ["finished", "finished", "unreadable", "begun"]
    write_table(results, file)
    back = read_table(file)
    assert back.runs == results.runs
    assert logged(back) == logged(results)
    assert as_plain(back.settings) == as_plain(results.settings)
    assert str(folder).encode() not in file.read_bytes(), "the file is shown to others"
    assert list(pd.read_parquet(file).columns) == ["run", "variant", "seed", "step", "metric", "value"]


def logged(results: Results) -> list[tuple[object, ...]]:
    """All rows of the table; values by repr, for NaN is not equal to itself."""
    rows = results.table.astype({"value": object}).itertuples(index=False)
    return sorted((*row[:-1], repr(float(row[-1]))) for row in rows)


def test_a_report_of_the_table_is_that_of_the_folder(ablate, folder: Path, tmp_path_factory) -> None:
    kept = tmp_path_factory.mktemp("kept")
    ablate("report", folder)
    (folder / "metrics.parquet").rename(kept / "metrics.parquet")
    for source in (kept / "metrics.parquet", kept):
        ablate("report", source)
        for name in ("report.md", "report.json", "report.html"):
            assert (kept / name).read_text() == (folder / name).read_text(), name
            (kept / name).unlink()


def test_another_file_is_refused_and_left(ablate, tmp_path: Path) -> None:
    file = tmp_path / "metrics.parquet"
    pd.DataFrame({"step": [1]}).to_parquet(tmp_path / "another.parquet")
    for content in (b"", b"PAR1", b"{}", (tmp_path / "another.parquet").read_bytes()):
        file.write_bytes(content)
        for source in (file, tmp_path):
            said = ablate("report", source, status=1).stderr
            assert "metrics.parquet is not a table that `ablate report` wrote" in said
            assert said.count("\n") == 1
        assert file.read_bytes() == content


def test_a_spoiled_table_is_refused(folder: Path) -> None:
    results, file = read_results(folder), folder / "kept.parquet"
    table, runs = results.table, results.runs
    for name, spoiled in (
        ("runs", runs[1:]),
        ("runs", [replace(runs[0], variant="another"), *runs[1:]]),
        ("runs", [replace(runs[0], seed=3), *runs[1:]]),
        ("table", table.drop(columns="step")),
        ("table", table.assign(run="another")),
        ("table", table.assign(value="much")),
        ("table", table.assign(seed="one")),
    ):
        changed = copy.copy(results)
        setattr(changed, name, spoiled)
        write_table(changed, file)
        with pytest.raises(AblationError, match=r"kept\.parquet is not a table that"):
            read_table(file)
