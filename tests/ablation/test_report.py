"""Test reports: by hand, with and without declared comparisons, from runs that are incomplete or corrupt."""

import csv
import dataclasses
import json
import math
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from grpo_verl_ext.ablation import report as documents
from grpo_verl_ext.ablation.analysis import Analysis, all_warnings
from grpo_verl_ext.ablation.figures import draw
from grpo_verl_ext.ablation.grid import AblationError
from grpo_verl_ext.ablation.measures import (
    MEASURES,
    costs_of,
    reached,
    report_rows,
)
from grpo_verl_ext.ablation.state import State
from grpo_verl_ext.ablation.table import Results, RunResult, gathered, read_results
from grpo_verl_ext.ablation.verdicts import Verdict
from grpo_verl_ext.cli import app

CURVE = pd.Series({0: 0.25, 4: 0.75, 6: 0.5})


def test_measures_by_hand() -> None:
    assert (MEASURES["final"](CURVE), MEASURES["best"](CURVE)) == (0.5, 0.75)
    # (4 · 0.5 + 2 · 0.625) / 6.
    assert MEASURES["area"](CURVE) == pytest.approx(3.25 / 6)
    assert MEASURES["area"](pd.Series({4: 0.75})) == 0.75


def test_costs_are_sums_and_a_peak(declared: Analysis) -> None:
    step = {"timing_s/step": 2.0, "perf/total_num_tokens": 10.0}
    peak = {"actor/perf/max_memory_allocated_gb": 3.0}
    run = RunResult("grpo", 1, State.FINISHED)
    results = gathered(declared.results.settings, [(run, {0: {}, 1: step | peak, 2: step})])
    assert costs_of(results)["grpo"] == {"seconds": 4.0, "tokens": 20.0, "memory_gb": 3.0}


@pytest.fixture
def unbegun(tmp_path: Path, grid_of) -> Path:
    grid_of(["other|one", "grpo"], ["acc", "nowhere"], baseline=["grpo"], seeds=[1, 2, 3])
    return tmp_path


@pytest.fixture
def folder(unbegun: Path, leave) -> Path:
    """Two whole pairs; with seed 3 only the baseline is finished."""
    for variant, seed, values in (
        *(("grpo", 1, [0.0, 0.0, 0.5]), ("other|one", 1, [0.0, 0.0, 0.75])),
        *(("grpo", 2, [0.0, 0.0, 0.25]), ("other|one", 2, [0.0, 0.0, 0.75])),
        *(("grpo", 3, [0.0, 0.0, 0.0]), ("other|one", 3, [0.0, 0.0])),
    ):
        leave(
            variant, seed, {step: {"acc": value, "timing_s/step": 1.5} for step, value in enumerate(values)}
        )
    return unbegun


def test_only_finished_runs_are_compared_and_by_seed(folder: Path) -> None:
    results = read_results(folder)
    assert results.variants == ["grpo", "other|one"], "the baseline comes first"
    base, other = (row for row in report_rows(results) if row["measure"] == "final")
    assert base["by_seed"] == {1: 0.5, 2: 0.25, 3: 0.0}
    assert (base["mean"], "versus_difference" in base) == (0.25, False)
    assert other["by_seed"] == {1: 0.75, 2: 0.75}
    # 0.25 with seed 1 and 0.5 with seed 2; seed 3 has no pair.
    assert [other[f"versus_{name}"] for name in ("seeds", "difference", "wins")] == [2, 0.375, 2]
    assert other["adjusted_p"] == other["versus_p"], "one comparison needs no correction"


def test_what_is_missing_is_said(folder: Path) -> None:
    assert all_warnings(read_results(folder)) == ["not finished, and left out: other|one/seed-3 (begun)"]


def test_when_a_threshold_was_reached_and_what_it_cost(folder: Path) -> None:
    results = read_results(folder)
    assert reached(results, 0.5) == {
        "grpo": [(1, 2, 4.5), (2, None, None), (3, None, None)],
        "other|one": [(1, 2, 4.5), (2, 2, 4.5)],
    }
    assert costs_of(results)["grpo"] == {"seconds": 4.5, "tokens": 0.0, "memory_gb": 0.0}


# Areas over steps 0 … 2: 1/8 and 3/16 with seed 1, 1/16 and 3/16 with seed 2. The differences 1/16 and 1/8
# have the mean 3/32 and the std √2/32; with t = 12.7062 (one degree of freedom) half the interval is 0.3971.
BY_HAND = "other|one − grpo, area of acc, 2 starts: +0.094 (−0.303 … 0.491)"
NOTHING_DECLARED = "nothing was declared before the runs, so nothing here is a finding"
GONE = ("best", "P(>", "d_z", "wins", "±", "final")
"""What a report no longer shows."""


def test_without_a_declaration_nothing_is_a_finding(folder: Path) -> None:
    finished = CliRunner().invoke(app, ["ablate", "report", str(folder), "--threshold", "0.5"])
    assert finished.exit_code == 0, finished.output
    said = [line for line in finished.output.splitlines() if line][1:3]  # the missing metric comes first
    assert said == [f"exploratory: {NOTHING_DECLARED}", BY_HAND]
    assert "other|one reached 0.5: seed 1: step 2, 4 s; seed 2: step 2, 4 s" in finished.output

    text = (folder / "report.md").read_text()
    assert f"- **exploratory**: {NOTHING_DECLARED}\n\n- {BY_HAND}\n" in text
    assert r"| other\|one | 4 | 0 | 0.00 |" in text
    assert "not finished, and left out: other|one/seed-3" in text
    assert [word for word in GONE if word in finished.output or word in text] == []
    content = json.loads((folder / "report.json").read_text())
    assert content["statements"] == [{"label": "exploratory", "sentence": NOTHING_DECLARED}]
    assert content["verdicts"] == content["checks"] == []
    names = {path.name for path in folder.iterdir()}
    assert {"forest.png", "forest.svg", "curve-acc.png", "curve-acc.svg", "report.html"} <= names
    assert names.isdisjoint({"verdicts.csv", "checks.csv"})


def test_json_and_csv_have_every_number(folder: Path) -> None:
    assert CliRunner().invoke(app, ["ablate", "report", str(folder)]).exit_code == 0
    rows = json.loads((folder / "report.json").read_text())["rows"]
    with (folder / "report.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    kinds = [("final", "grpo"), ("final", "other|one"), ("best", "grpo"), ("best", "other|one")]
    for found in (rows, table):
        assert [(row["measure"], row["variant"]) for row in found][:4] == kinds
    assert float(table[1]["versus_difference"]) == rows[1]["versus_difference"] == 0.375
    assert rows[1]["by_seed"] == {"1": 0.75, "2": 0.75}
    assert [table[0][f"seed_{seed}"] for seed in (1, 2, 3)] == ["0.5", "0.25", "0.0"]
    assert table[1]["seed_3"] == ""
    # 0.25 and 0.5: mean 3/8, std √2/8, so d_z is 3/√2; t = 3 with one degree of freedom.
    assert rows[1]["versus_effect"] == pytest.approx(3 / math.sqrt(2), rel=1e-12)
    assert rows[1]["versus_p"] == pytest.approx(1 - 2 * math.atan(3) / math.pi, rel=1e-9)
    assert (rows[1]["versus_wins"], table[1]["versus_wins"]) == (2, "2")


def test_verdicts_come_first_and_their_label_is_set_off(declared: Analysis) -> None:
    sentences = [verdict.sentence for verdict in declared.verdicts]
    labels = ["undecided", "equal within the margin", "shown", "opposite", "not exercised"]
    lines = documents.as_markdown(documents.report_of(declared)).splitlines()
    assert lines[:5] == [
        f"- **{label}**: {sentence}" for label, sentence in zip(labels, sentences, strict=True)
    ]
    assert [line for line in lines if "exploratory" in line] == []
    content = json.loads(documents.as_json(documents.report_of(declared)))
    assert next(iter(content)) == "statements"
    assert [(each["label"], each["sentence"]) for each in content["statements"]] == list(
        zip(labels, sentences, strict=True)
    )


def test_markdown_has_the_checks_and_the_costs(declared: Analysis) -> None:
    tables = [
        part
        for part in documents.as_markdown(documents.report_of(declared)).split("\n\n")
        if part.startswith("| ")
    ]
    assert [table.splitlines()[2:] for table in tables] == [
        [
            "| actor/pg_clipfrac, mean, at least 0.01 | ppo | 0.00996 | missed |",
            "| lr1e-3 lower than grpo | lr1e-3 | −0.25 | passed |",
        ],
        ["| grpo | 4 | 20 | 3.00 |"],
    ]


def test_json_and_csv_have_the_verdicts_and_the_checks(declared: Analysis, tmp_path: Path) -> None:
    documents.write_files(documents.report_of(declared), tmp_path)
    content = json.loads((tmp_path / "report.json").read_text())
    with (tmp_path / "verdicts.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    fields = {each.name for each in dataclasses.fields(Verdict)} - {"by_seed"}
    assert table[0].keys() == fields | {"seed_1", "seed_2"}
    assert content["verdicts"][0].keys() == fields | {"by_seed"}
    assert [verdict["outcome"] for verdict in content["verdicts"]] == [row["outcome"] for row in table]
    assert content["verdicts"][3]["outcome"] == "opposite"
    assert content["verdicts"][0]["by_seed"] == {"1": -0.1, "2": -0.08}
    assert (table[0]["seed_1"], table[0]["seed_2"]) == ("-0.1", "-0.08")
    assert (table[0]["p_equal"], table[0]["minutes_needed"]) == ("0.25", "93.0")

    assert [check["passed"] for check in content["checks"]] == [False, True]
    with (tmp_path / "checks.csv").open(newline="") as file:
        (_, control) = csv.DictReader(file)
    assert (control["variant"], control["value"], control["is_control"]) == ("lr1e-3", "-0.25", "True")


@pytest.mark.parametrize(("passed", "label"), [(True, "control shown"), (False, "control missed")])
def test_a_grid_that_declares_its_control_alone_begins_with_it(
    declared: Analysis, passed: bool, label: str
) -> None:
    check, control = declared.checks
    control = dataclasses.replace(control, passed=passed, sentence="lr1e-3 − grpo: −0.250")
    analysis = dataclasses.replace(declared, verdicts=[], checks=[check, control])
    text = documents.as_markdown(documents.report_of(analysis))
    assert text.startswith(f"- **{label}**: lr1e-3 − grpo: −0.250\n\n### checks")
    assert "exploratory" not in text


def test_a_verdict_without_a_number_is_reported(declared: Analysis, tmp_path: Path) -> None:
    """Before the first pair of runs."""
    without = {"difference": None, "low": None, "high": None, "by_seed": {}, "starts": 0}
    unknown = [dataclasses.replace(verdict, **without) for verdict in declared.verdicts]
    check = dataclasses.replace(declared.checks[0], value=None)
    analysis = dataclasses.replace(declared, verdicts=unknown, checks=[check])
    documents.write_files(documents.report_of(analysis), tmp_path)
    assert "| ppo | – | missed |" in (tmp_path / "report.md").read_text()
    assert json.loads((tmp_path / "report.json").read_text())["verdicts"][0]["difference"] is None
    assert "forest.png" not in [file.name for file in draw(documents.report_of(analysis), tmp_path)]


def test_a_piped_report_has_a_row_a_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    long = "other-" * 12 + "x"
    grid = json.loads((folder / "grid.json").read_text())
    grid["axes"]["algo"][long] = []
    (folder / "grid.json").write_text(json.dumps(grid))
    (folder / "other|one").rename(folder / long)
    finished = CliRunner().invoke(app, ["ablate", "report", str(folder)])
    assert finished.exit_code == 0, finished.output
    lines = [" ".join(line.split()) for line in finished.output.splitlines()]
    assert BY_HAND.replace("other|one", long) in lines
    assert f"{long} 4 0 0.00" in lines, "seconds, tokens and memory"


def test_the_json_says_null_where_there_is_no_number(folder: Path, leave) -> None:
    leave("grpo", 1, {step: {"acc": math.nan, "timing_s/step": 1.5} for step in range(3)})
    finished = CliRunner().invoke(app, ["ablate", "report", str(folder)])
    assert finished.exit_code == 0, finished.output
    content = json.loads((folder / "report.json").read_text(), parse_constant=pytest.fail)
    assert content["rows"][0]["by_seed"] == {"1": None, "2": 0.25, "3": 0.0}


def test_nothing_finished_is_a_report_too(unbegun: Path) -> None:
    results = read_results(unbegun)
    assert {run.state for run in results.runs} == {State.WAITING}
    assert report_rows(results) == []
    finished = CliRunner().invoke(app, ["ablate", "report", str(unbegun)])
    assert finished.exit_code == 0
    assert "not finished, and left out: other|one/seed-1 (waiting)" in finished.output


def test_a_moved_folder_is_read(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    moved = tmp_path_factory.mktemp("elsewhere") / "runs"
    folder.rename(moved)
    assert isinstance(read_results(moved), Results)
    assert len(report_rows(read_results(moved))) == 6


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"more": 1}', '{"axes": 3, "seeds": 3}'])
def test_a_corrupt_grid_is_named_and_left(tmp_path: Path, text: str) -> None:
    (tmp_path / "grid.json").write_text(text)
    with pytest.raises(AblationError, match=r"grid\.json is not a grid"):
        read_results(tmp_path)
    assert (tmp_path / "grid.json").read_text() == text


def test_corrupt_metrics_are_named_left_and_the_report_goes_on(folder: Path) -> None:
    file = folder / "grpo" / "seed-1" / "attempt-1.jsonl"
    file.write_text('{"step": 0, "data": {}}\n{"st\n')
    before = file.read_bytes()
    finished = CliRunner().invoke(app, ["ablate", "report", str(folder)])
    assert finished.exit_code == 0, finished.output
    named = "grpo/seed-1/attempt-1.jsonl, line 2, is no record of verl's file logger"
    content = json.loads((folder / "report.json").read_text())
    assert content["warnings"][0].startswith(named)
    assert "grpo/seed-1 (unreadable)" in content["warnings"][1]
    assert named in finished.output
    assert content["rows"][0]["by_seed"] == {"2": 0.25, "3": 0.0}
    assert file.read_bytes() == before


def test_a_truncated_last_line_is_a_run_that_was_killed(folder: Path) -> None:
    file = folder / "grpo" / "seed-1" / "attempt-1.jsonl"
    file.write_text(file.read_text()[:-5])
    results = read_results(folder)
    assert [run.state for run in results.runs if (run.variant, run.seed) == ("grpo", 1)] == [State.BEGUN]
    assert all("attempt-1" not in word for word in all_warnings(results))


def test_a_corrupt_record_is_named_and_its_run_counts(folder: Path) -> None:
    (folder / "grpo" / "seed-1" / "run.json").write_text("{")
    results = read_results(folder)
    assert report_rows(results)[0]["by_seed"] == {1: 0.5, 2: 0.25, 3: 0.0}
    assert all_warnings(results)[0].startswith("grpo/seed-1/run.json is not the record of a run")


def test_a_folder_without_a_grid(tmp_path: Path) -> None:
    refused = CliRunner().invoke(app, ["ablate", "report", str(tmp_path)])
    assert refused.exit_code == 1
    assert "has no grid.json" in refused.output
