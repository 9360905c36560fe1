"""Test what ``grpo-verl-ext prepare`` prints, and its exit status."""

from dataclasses import replace

import pytest
from typer.testing import CliRunner

from grpo_verl_ext.cli import app
from grpo_verl_ext.tasks.chain_sum import prepared
from grpo_verl_ext.tasks.chain_sum.prepared import TaskSettings

TINY = TaskSettings(
    max_terms=3, train_problems=30, test_problems=9, width=32, layers=1, heads=1, feed_forward=32,
    steps=2, slip_steps=1, batch_size=4, workers=2,
)  # fmt: skip


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("GRPO_VERL_EXT_CACHE", str(tmp_path))
    monkeypatch.setattr(prepared, "TASKS", {task: replace(TINY, name=task) for task in prepared.TASKS})
    return lambda *arguments: CliRunner().invoke(app, ["prepare", *arguments])


def test_made_then_found_then_corrupt_then_forced(run, tmp_path):
    folder = tmp_path / "chain_sum" / "seed-3"
    made = run("chain_sum", "--seed", "3")
    assert made.exit_code == 0
    assert f"made: {folder}\n" in made.stdout
    assert "sampled accuracy 0.000, greedy 0.000, on 9 test prompts" in made.stdout
    assert "good for a training; " in made.stdout

    found = run("chain_sum", "--seed", "3")
    assert found.exit_code == 0
    assert f"already there, nothing to do: {folder}\n" in found.stdout

    (folder / "train.parquet").write_text("mine")
    corrupt = run("chain_sum", "--seed", "3")
    assert corrupt.exit_code == 1
    assert corrupt.stderr.count("\n") == 1
    assert f"{folder}/train.parquet cannot be used" in corrupt.stderr
    assert corrupt.stderr.endswith("type: grpo-verl-ext prepare chain_sum --seed 3 --force\n")

    forced = run("chain_sum", "--seed", "3", "--force")
    assert forced.exit_code == 0
    kept = forced.stdout.rpartition("kept in ")[2].strip()
    assert kept.startswith(f"{folder}.old-")
    assert (tmp_path / "chain_sum" / kept / "train.parquet").read_text() == "mine"


def test_the_tasks_are_those_of_the_table(run, tmp_path):
    shown = run("--help").stdout
    assert [task for task in prepared.TASKS if f" {task} " not in shown] == []
    made = run("chain_sum_mixed", "--seed", "3")
    assert made.exit_code == 0, made.output
    assert (tmp_path / "chain_sum_mixed" / "seed-3" / "manifest.json").is_file()


@pytest.mark.parametrize(
    "arguments",
    [
        ["chain_summ"],
        ["chain_sum", "--seed", "one"],
        ["chain_sum", "--seed", "-1"],
        ["chain_sum", "--seed", f"{2**70}"],
        [],
    ],
)
def test_what_is_not_understood_is_status_two(run, arguments):
    assert run(*arguments).exit_code == 2
