"""Test reports: by hand, with and without declared comparisons, from runs that are incomplete or corrupt."""

import dataclasses
import json
import math
from pathlib import Path

import pytest

from grpo_verl_ext.ablation.report import Report, forest, write_files
from grpo_verl_ext.ablation.results import read_results


@pytest.fixture
def folder(tmp_path: Path, grid_of, leave) -> Path:
    """Two whole pairs; with seed 3 only the baseline is finished."""
    grid_of(["other.one", "grpo"], ["acc", "nowhere"], baseline=["grpo"], seeds=[1, 2, 3])
    ends = {"grpo": ([0.5], [0.25], [0.0]), "other.one": ([0.75], [0.75], [])}
    for variant, last in ends.items():
        for seed, end in enumerate(last, start=1):
            values = enumerate([0.0, 0.0, *end])
            leave(variant, seed, {step: {"acc": value, "timing_s/step": 1.5} for step, value in values})
    return tmp_path


def test_only_finished_runs_are_compared_and_by_seed(folder: Path) -> None:
    results = read_results(folder)
    assert results.variants == ["grpo", "other.one"], "the baseline comes first"
    base, other = (row for row in results.rows if row["measure"] == "final")
    assert base["by_seed"] == {1: 0.5, 2: 0.25, 3: 0.0}
    assert (base["mean"], "versus_difference" in base) == (0.25, False)
    assert other["by_seed"] == {1: 0.75, 2: 0.75}
    # 0.25 with seed 1 and 0.5 with seed 2; seed 3 has no pair.
    assert other["versus_difference"] == 0.375
    # mean 3/8, std √2/8, so that t = 3 with one degree of freedom
    assert other["versus_p"] == pytest.approx(1 - 2 * math.atan(3) / math.pi, rel=1e-9)
    assert other["adjusted_p"] == other["versus_p"], "one comparison needs no correction"


# Areas over steps 0 … 2: 1/8 and 3/16 with seed 1, 1/16 and 3/16 with seed 2. The differences 1/16 and 1/8
# have the mean 3/32 and the std √2/32; with t = 12.7062 (one degree of freedom) half the interval is 0.3971.
BY_HAND = "other.one − grpo, mean over steps of acc, 2 seeds: +0.094 (−0.303 … 0.491)"
NOTHING_DECLARED = "no hypothesis was declared before the runs: take differences as hints"
"""What a report no longer shows."""


def test_without_a_declaration_nothing_is_a_finding(ablate, folder: Path) -> None:
    lines = ablate("report", folder).output.splitlines()
    said = [line for line in lines if line][1:3]  # the missing metric comes first
    assert said == [f"exploratory: {NOTHING_DECLARED}", BY_HAND]
    text = (folder / "report.md").read_text()
    assert f"- **exploratory**: {NOTHING_DECLARED}\n\n- {BY_HAND}\n" in text
    assert r"| other.one | 0.188 | 4 | 0 | 0.00 |" in text
    assert "not finished, and left out: other.one/seed-3" in text
    content = json.loads((folder / "report.json").read_text())
    assert content["statements"] == [{"label": "exploratory", "sentence": NOTHING_DECLARED}]
    assert content["verdicts"] == content["checks"] == []
    names = {path.name for path in folder.iterdir()}
    assert {"report.json", "report.md", "report.html", "metrics.parquet"} <= names


def test_verdicts_come_first_and_their_label_is_set_off(declared: Report, tmp_path: Path) -> None:
    labels = ["undecided", "equal within the margin", "higher", "lower", "not exercised"]
    said = [(label, verdict.sentence) for label, verdict in zip(labels, declared.verdicts, strict=True)]
    write_files(declared, tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert text.startswith("".join(f"- **{label}**: {sentence}\n" for label, sentence in said))
    assert "exploratory" not in text
    content = json.loads((tmp_path / "report.json").read_text())
    assert next(iter(content)) == "statements"
    assert [(each["label"], each["sentence"]) for each in content["statements"]] == said


@pytest.mark.parametrize(("passed", "label"), [(True, "control shown"), (False, "control missed")])
def test_a_control_alone_is_the_first_statement(declared: Report, tmp_path: Path, passed, label) -> None:
    check, control = declared.checks
    control = dataclasses.replace(control, passed=passed, sentence="lr1e-3 − grpo: −0.250")
    analysis = dataclasses.replace(declared, judged=([check, control], []))
    write_files(analysis, tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert text.startswith(f"- **{label}**: lr1e-3 − grpo: −0.250\n\n")
    assert "exploratory" not in text


def test_a_verdict_without_a_number_is_reported(declared: Report, tmp_path: Path) -> None:
    """Before the first pair of runs."""
    without = {"difference": None, "low": None, "high": None, "by_seed": {}}
    unknown = [dataclasses.replace(verdict, **without) for verdict in declared.verdicts]
    check = dataclasses.replace(declared.checks[0], value=None, name="of a|b")
    analysis = dataclasses.replace(declared, judged=([check], unknown))
    write_files(analysis, tmp_path)
    assert r"| of a\|b | ppo | – | missed |" in (tmp_path / "report.md").read_text()
    assert json.loads((tmp_path / "report.json").read_text())["verdicts"][0]["difference"] is None
    assert forest(analysis) is None


def test_the_json_says_null_where_there_is_no_number(ablate, folder: Path, leave) -> None:
    leave("grpo", 1, {step: {"acc": math.nan, "timing_s/step": 1.5} for step in range(3)})
    ablate("report", folder)
    content = json.loads((folder / "report.json").read_text(), parse_constant=pytest.fail)
    assert content["rows"][0]["by_seed"] == {"1": None, "2": 0.25, "3": 0.0}


def test_corrupt_metrics_are_named_left_and_the_report_goes_on(ablate, folder: Path) -> None:
    file = folder / "grpo" / "seed-1" / "attempt-1.jsonl"
    file.write_text('{"step": 0, "data": {}}\n{"st\n')
    before = file.read_bytes()
    said = ablate("report", folder).output
    named = "grpo/seed-1/attempt-1.jsonl, line 2, is no record of verl's metrics"
    content = json.loads((folder / "report.json").read_text())
    assert content["warnings"][0].startswith(named)
    assert "grpo/seed-1 (unreadable)" in content["warnings"][1]
    assert named in said
    assert content["rows"][0]["by_seed"] == {"2": 0.25, "3": 0.0}
    assert file.read_bytes() == before


def test_a_corrupt_record_is_named_and_its_run_counts(folder: Path) -> None:
    (folder / "grpo" / "seed-1" / "run.json").write_text("{")
    results = read_results(folder)
    assert results.rows[0]["by_seed"] == {1: 0.5, 2: 0.25, 3: 0.0}
    assert Report(results).warnings[0].startswith("grpo/seed-1/run.json is not the record of a run")
