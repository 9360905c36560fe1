"""Test the files and commands of docs/first_hour.md in a folder of their own; its trainings are not run."""

import json
import runpy
import shlex
from pathlib import Path

import pandas
import pytest
from embedded_task import make_embedded_task
from markdown_pages import ROOT, blocks, commands
from typer.testing import CliRunner

from grpo_verl_ext.cli import app
from grpo_verl_ext.doctor.configuration import all_findings
from grpo_verl_ext.runs.verl_run import TRAINED, VerlRun

PAGE = ROOT / "docs/first_hour.md"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The page's files, saved under the names that it gives them."""
    monkeypatch.chdir(tmp_path)
    saved = [block.text for block in blocks(PAGE) if block.language in ("python", "yaml")]
    for name, text in zip(("my_reward.py", "my_data.py", "two_losses.yaml"), saved, strict=True):
        (tmp_path / name).write_text(text)
    runpy.run_path("my_data.py")
    return tmp_path


def test_the_rows_and_their_rewards(folder: Path) -> None:
    rows = pandas.read_parquet(folder / "mine.parquet").to_dict("records")
    score = runpy.run_path("my_reward.py")["compute_score"]
    assert len(rows) == 10
    for row in rows:
        (turn,) = row["prompt"]
        wanted = str(sum(int(term) for term in turn["content"].removesuffix("=?").split("+")))
        assert wanted == row["reward_model"]["ground_truth"]
        right, wrong = (f"<answer>{answer}</answer>" for answer in (wanted, "0"))
        assert score(row["data_source"], right, wanted, row["extra_info"], weights={}) == {
            "score": 1 - len(right) / 200,
            "acc": 1.0,
        }
        assert score(row["data_source"], wrong, wanted)["acc"] == 0.0


def test_the_trainings_are_accepted(folder: Path) -> None:
    trainings = [command for command in commands(PAGE) if command.startswith("grpo-verl-ext train gvpo")]
    assert len(trainings) == 2
    for training in trainings:
        overrides = shlex.split(training.replace("$PWD", str(folder)))[3:]
        found = list(all_findings(["+algo=gvpo", *overrides]))
        assert [each for each in found if each.check not in ("task", "model")] == []


@pytest.mark.usefixtures("folder")
def test_the_comparisons_report_has_no_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPO_VERL_EXT_CACHE", str(tmp_path))
    for seed in (1, 2):
        make_embedded_task(tmp_path / f"chain_sum/seed-{seed}")
    lines = [{"step": n, "data": {TRAINED: n, "gold_response/right": n / 8}} for n in range(1, 5)]
    attempt = "".join(f"{json.dumps(line)}\n" for line in lines)
    monkeypatch.setattr(VerlRun, "go", lambda run, _: (run.folder / "attempt-1.jsonl").write_text(attempt))
    monkeypatch.setattr("grpo_verl_ext.ablation.run.git_revision", lambda: "abc")
    for words in (["run", "two_losses.yaml"], ["report", "outputs/two_losses"]):
        ended = CliRunner().invoke(app, ["ablate", *words])
        assert ended.exit_code == 0, ended.output
    assert json.loads(Path("outputs/two_losses/report.json").read_text())["warnings"] == []
