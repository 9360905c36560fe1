"""Test rounds on full disks, in folders that cannot be written, and with files that are something else."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from limits import full, read_only
from omegaconf import OmegaConf
from typer.testing import CliRunner

from grpo_verl_ext.cli import app
from grpo_verl_ext.iterate import checks, rounds, terminal

Run = Callable[[], tuple[int, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Status and standard error of a round in ``tmp_path/closed/out`` that trains, and does no more."""
    settings = {
        "folder": str(tmp_path / "closed" / "out"),
        "rounds": 1,
        "policy": {"steps": 2, "overrides": ["+algo=grpo"]},
        "reward_model": {"label": "a.b"},
    }
    (tmp_path / "closed").mkdir()
    (tmp_path / "rounds.yaml").write_text(json.dumps(settings))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "helpers" / "fake_verl"))
    monkeypatch.setattr(checks, "compose_rounds", lambda settings: OmegaConf.create({}))
    monkeypatch.setattr(checks, "checked_rule", lambda settings, config: None)
    policy_alone = {"policy": rounds.PARTS["policy"]}
    monkeypatch.setattr(terminal, "run_rounds", lambda *words: rounds.run_rounds(*words, policy_alone))

    def run() -> tuple[int, str]:
        ended = CliRunner().invoke(app, ["iterate", "run", str(tmp_path / "rounds.yaml")])
        assert ended.exception is None or isinstance(ended.exception, SystemExit), ended.exception
        return ended.exit_code, ended.stderr

    return run


def test_a_closed_folder_a_full_disk_and_then_a_resume(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "closed" / "out"
    with read_only(tmp_path / "closed"):
        assert run() == (
            1,
            f"iterate: {folder}: Permission denied; valid is a place that this user may read and write. "
            "Type: folder=<another>\n",
        )
    full(folder / "manifest.json")
    assert run() == (
        1,
        f"iterate: {folder}/manifest.json: No space left on device. Free space there, and run the same "
        "command again; what was finished is kept\n",
    )
    assert run() == (0, "")


def test_a_folder_in_the_place_of_metrics(run: Run, tmp_path: Path) -> None:
    place = tmp_path / "closed" / "out" / "round-1" / "policy" / "attempt-1.jsonl"
    place.mkdir(parents=True)
    assert run() == (
        1,
        f"iterate: {place} cannot be read as verl's metrics (Is a directory). It was left in place; move it "
        f"away to continue without it\n",
    )
    place.rmdir()
    assert run() == (0, "")
