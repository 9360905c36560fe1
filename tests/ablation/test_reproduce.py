"""Test `ablate reproduce`: one kept run is trained again, and every difference is named."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from typer.testing import CliRunner

from grpo_verl_ext.ablation.running import checks, inputs
from grpo_verl_ext.ablation.running.results import read_results, write_compact
from grpo_verl_ext.cli import app
from grpo_verl_ext.runs.metrics import TRAINED, Metrics
from grpo_verl_ext.runs.provenance import git_revision, machine, versions
from grpo_verl_ext.runs.verl_run import VerlRun

KEPT: Metrics = {
    0: {"acc": 0.1},
    1: {"loss": 0.5, "timing_s/step": 3.0, "perf/time": 3.0},
    2: {"acc": 0.2, "loss": math.nan, "timing_s/step": 3.0, "perf/time": 3.0},
}
MODEL = "actor_rollout_ref.model.path"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    file = tmp_path / "model" / "weights"
    file.parent.mkdir()
    file.write_text("the start")
    return file


@pytest.fixture
def record(model: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Of a run made here and now, from a commit without changes."""
    for module in ("terminal", "running.runner"):
        monkeypatch.setattr(f"grpo_verl_ext.ablation.{module}.git_revision", lambda: "abc")
    return {
        "overrides": ["+algo=base", "task.seed=1"],
        "steps": 2,
        "git_revision": "abc",
        "versions": versions(),
        "inputs": inputs.inputs_of(
            OmegaConf.create({"actor_rollout_ref": {"model": {"path": str(model.parent)}}})
        ),
        "machine": machine(),
    }


@pytest.fixture
def kept(tmp_path: Path, grid_of, leave, record: dict[str, Any]) -> Path:
    """A grid's folder with one finished run that has a record, and one that has only begun."""
    grid_of(["base", "other"], ["acc"], base=["steps=3"])
    (leave("base", 1, KEPT) / "run.json").write_text(json.dumps(record))
    leave("base", 2, KEPT)
    leave("other", 1, {1: {"acc": 0.2}})
    return tmp_path


@pytest.fixture
def verl(model: Path, monkeypatch: pytest.MonkeyPatch) -> Metrics:
    """A stand-in for verl's process, which logs the returned metrics; a test may change them."""
    logged = {step: dict(values) for step, values in KEPT.items()}

    def go_(run: VerlRun, on_metrics: Callable[[Metrics], None]) -> None:
        assert run.overrides == ["+algo=base", "task.seed=1"], "those of the record, not of the grid"
        run.folder.mkdir(parents=True, exist_ok=True)
        lines = [
            {"step": step, "data": {**values, **({TRAINED: step} if step else {})}}
            for step, values in logged.items()
        ]
        (run.folder / "attempt-1.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))

    monkeypatch.setattr(VerlRun, "go", go_)
    config = OmegaConf.create({"actor_rollout_ref": {"model": {"path": str(model.parent)}}})
    monkeypatch.setattr(checks, "compose_runs", lambda runs, plugin: {run.name: config for run in runs})
    monkeypatch.setattr(checks, "check_runs", lambda configs, plugin: None)
    return logged


def reproduce(kept: Path, *words: str) -> tuple[int, str]:
    """Exit status, and all that was printed."""
    ended = CliRunner().invoke(app, ["ablate", "reproduce", str(kept), *words])
    assert ended.exception is None or isinstance(ended.exception, SystemExit), ended.exception
    return ended.exit_code, " ".join(ended.output.split())


def test_the_same_to_the_bit(kept: Path, verl: Metrics, tmp_path: Path) -> None:
    """Seconds, which are the machine's, may differ; NaN is NaN."""
    verl[1]["timing_s/step"] = verl[1]["perf/time"] = 9.0
    status, printed = reproduce(kept, "--run", "base/seed-1", "--output", str(tmp_path / "again"))
    assert "model, data, commit, versions and machine are those of the record" in printed
    assert "all 3 metrics are the same to the bit at every step" in printed  # acc, loss, the step's number
    assert status == 0


def test_the_largest_difference_and_the_first_step(kept: Path, verl: Metrics, tmp_path: Path) -> None:
    verl[1]["loss"], verl[2]["acc"], verl[2]["loss"] = 0.5 + 2**-50, 0.325, 0.1
    status, printed = reproduce(kept, "--run", "base/seed-1", "--output", str(tmp_path / "again"))
    assert "2 of 3 metrics differ, first loss at step 1" in printed
    assert "acc 2 2 0.125" in printed
    assert "loss 2 1 inf" in printed, "NaN on one side only"
    assert status == 1


def test_another_start_another_commit_and_another_version(
    kept: Path, verl: Metrics, tmp_path: Path, model: Path, record: dict[str, Any]
) -> None:
    model.write_text("another start")
    record["versions"]["torch"] = "1.0"
    record["git_revision"] = "def"
    (kept / "base" / "seed-1" / "run.json").write_text(json.dumps(record))
    status, printed = reproduce(kept, "--run", "base/seed-1", "--output", str(tmp_path / "again"))
    assert MODEL in printed
    assert f"torch 1.0 {versions()['torch']}" in printed
    assert "commit def abc" in printed
    assert "all 3 metrics are the same" in printed
    assert status == 1, "equal numbers from another start are a coincidence"


def test_from_the_compact_file_and_not_trained_twice(
    kept: Path, verl: Metrics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("runs", "another"):
        write_compact(read_results(kept), tmp_path / "alone" / f"{name}.json")
    monkeypatch.chdir(tmp_path)
    for folder in ("base", "other"):
        shutil.rmtree(kept / folder)
    assert reproduce(tmp_path / "alone", "--run", "base/seed-1")[0] == 0
    assert reproduce(tmp_path / "alone" / "another.json", "--run", "base/seed-1")[0] == 0
    for folder in ("alone", "alone/another"):
        assert (tmp_path / "outputs" / "reproduced" / folder / "base" / "seed-1" / "run.json").is_file()
    monkeypatch.setattr(VerlRun, "go", lambda *_: pytest.fail("it was finished"))
    assert reproduce(tmp_path / "alone", "--run", "base/seed-1")[0] == 0


def test_a_record_without_the_hashes_of_later_versions_is_reproduced_twice(
    kept: Path, verl: Metrics, tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The measured responses have a hash now, and had none."""
    gold = {"algorithm": {"grpo_ext": {"gold_responses": {"files": str(model)}}}}
    config = OmegaConf.create({"actor_rollout_ref": {"model": {"path": str(model.parent)}}, **gold})
    monkeypatch.setattr(checks, "compose_runs", lambda runs, plugin: {run.name: config for run in runs})
    for _ in range(2):
        assert reproduce(kept, "--run", "base/seed-1", "--output", str(tmp_path / "again"))[0] == 0


def test_numbers_of_an_earlier_try_are_not_those_of_today(
    kept: Path, verl: Metrics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = tmp_path / "again"
    words = ("--run", "base/seed-1", "--output", str(again))
    assert reproduce(kept, *words)[0] == 0
    today = versions() | {"torch": "0"}
    monkeypatch.setattr("grpo_verl_ext.ablation.running.runner.versions", lambda: today)
    status, printed = reproduce(kept, *words)
    assert status == 1
    assert f"{again}/base/seed-1 was begun with the versions" in printed
    assert "the same to the bit" not in printed


def test_changed_sources_are_never_those_of_an_earlier_try(
    kept: Path, verl: Metrics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grpo_verl_ext.ablation.running.runner.git_revision", lambda: "abc+changes")
    words = ("--run", "base/seed-1", "--output", str(tmp_path / "again"))
    assert reproduce(kept, *words)[0] == 0
    status, printed = reproduce(kept, *words)
    assert status == 1
    assert "was begun with the commit abc+changes, and now it is abc+changes; no record" in printed


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (
            "base/seed-3",
            "--run is base/seed-3; valid are base/seed-1, other/seed-1, base/seed-2, other/seed-2",
        ),
        (
            "other/seed-1",
            "--run is other/seed-1, which is begun; valid is a finished run: base/seed-1, base/seed-2",
        ),
        ("base/seed-2", "base/seed-2 cannot be trained again: it has no record of its overrides (run.json)"),
    ],
)
def test_a_run_that_cannot_be_trained_again(kept: Path, run: str, message: str) -> None:
    status, printed = reproduce(kept, "--run", run)
    assert message in printed
    assert status == 1


def test_a_record_that_lacks_something_names_all_of_it(kept: Path, record: dict[str, Any]) -> None:
    del record["inputs"]
    record["git_revision"] = "abc+changes"
    (kept / "base" / "seed-1" / "run.json").write_text(json.dumps(record))
    status, printed = reproduce(kept, "--run", "base/seed-1")
    assert (
        "its sources differed from their commit (abc+changes), so what ran cannot be known; its record"
        in printed
    )
    assert "no hash of its model and data (inputs)" in printed
    assert status == 1


def test_a_metric_that_only_one_has(kept: Path, verl: Metrics, tmp_path: Path) -> None:
    del verl[2]["loss"]
    status, printed = reproduce(kept, "--run", "base/seed-1", "--output", str(tmp_path / "again"))
    assert "only one of the two trainings has logged loss at step 2, and 0 more" in printed
    assert status == 1


def test_the_commit_of_this_checkout_is_what_is_compared() -> None:
    """The fixture replaces it, for a work tree may have changes."""
    assert git_revision() is not None
