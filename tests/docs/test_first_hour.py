"""Test the files and commands of docs/first_hour.md in a folder of their own; its trainings are not run."""

import runpy
import shlex
from pathlib import Path

import pandas
import pytest
from markdown_pages import ROOT, blocks, commands
from typer.testing import CliRunner

from grpo_verl_ext.cli import app
from grpo_verl_ext.doctor.configuration import all_findings

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
def test_the_comparison_is_planned() -> None:
    planned = CliRunner().invoke(app, ["ablate", "plan", "two_losses.yaml"])
    assert planned.exit_code == 0, planned.output
    assert "4 of 4 runs to do" in planned.output
