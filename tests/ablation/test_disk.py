"""Test grids on full disks, in read-only folders, and with files that are not what they should be.

One sentence each, the other runs go on, and nothing that was there is lost.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from limits import full, largest_file, read_only
from typer.testing import CliRunner

from grpo_verl_ext.ablation.grid import GridRun, read_grid, runs_of
from grpo_verl_ext.ablation.state import FAILURE, State, status_of
from grpo_verl_ext.cli import app
from grpo_verl_ext.runs.child_process import ProcessFailedError
from grpo_verl_ext.runs.metrics import TRAINED, Metrics
from grpo_verl_ext.runs.verl_run import VerlRun


def written(folder: Path, **changes: object) -> Path:
    """A grid of three variants and a seed, whose results are in ``folder/out``."""
    grid = {
        "folder": str(folder / "out"),
        "steps": 2,
        "base": [],
        "axes": {"algo": {label: [] for label in "abc"}},
        "seeds": [1],
        "baseline": ["a"],
        "metrics": ["acc"],
    }
    (folder / "grid.yaml").write_text(json.dumps(grid | changes))
    return folder / "grid.yaml"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return written(tmp_path)


@pytest.fixture
def verl(monkeypatch: pytest.MonkeyPatch, uncomposed: None) -> set[str]:
    """A stand-in for verl's process and for what it checks; the variants in the set fail."""
    failing: set[str] = set()

    def go_(run: VerlRun, on_metrics: Callable[[Metrics], None]) -> None:
        if run.folder.parent.name in failing:
            raise ProcessFailedError("the disk is full, says verl\nended with status 1")
        line = {"step": 2, "data": {TRAINED: 2, "acc": 0.5}}
        (run.folder / "attempt-1.jsonl").write_text(json.dumps(line) + "\n")
        on_metrics(run.metrics())

    monkeypatch.setattr(VerlRun, "go", go_)
    return failing


@pytest.fixture
def runs(file: Path) -> list[GridRun]:
    return runs_of(read_grid(file))


def ablate(*words: Any) -> tuple[int, str, str]:
    """Exit status, standard output and standard error; no traceback."""
    ended = CliRunner().invoke(app, ["ablate", *map(str, words)])
    assert ended.exception is None or isinstance(ended.exception, SystemExit), ended.exception
    return ended.exit_code, ended.stdout, ended.stderr


def states(runs: list[GridRun]) -> list[State]:
    return [status_of(run).state for run in runs]


class TestRuns:
    def test_a_folder_that_cannot_be_written_stops_one_run(self, file, verl, runs) -> None:
        runs[1].training.folder.mkdir(parents=True)
        with read_only(runs[1].training.folder):
            status, printed, _ = ablate("run", file)
            assert states(runs) == [State.FINISHED, State.BEGUN, State.FINISHED]
        assert status == 1
        assert f"b/seed-1: {runs[1].training.folder}/run.json: Permission denied; valid is a place" in printed
        assert ablate("run", file)[0] == 0
        assert states(runs) == [State.FINISHED] * 3

    def test_a_failure_that_no_file_can_take_is_printed(self, file, verl, runs) -> None:
        verl.add("b")
        full(runs[1].training.folder / FAILURE)
        status, printed, _ = ablate("run", file)
        assert status == 1
        assert "b/seed-1: the disk is full, says verl\nended with status 1\n" in printed
        assert (
            f"{FAILURE}: No space left on device. Free space there, and run the same command again" in printed
        )
        assert states(runs) == [State.FINISHED, State.BEGUN, State.FINISHED]

    @pytest.mark.parametrize("command", ["plan", "run"])
    def test_a_folder_in_which_nothing_can_be_made(self, file, verl, tmp_path, command: str) -> None:
        (tmp_path / "closed").mkdir()
        words = [command, file, f"folder={tmp_path}/closed/out"]
        with read_only(tmp_path / "closed"):
            status, _, error = ablate(*words)
        if command == "plan":
            assert status == 0
        else:
            assert status == 1
            assert error == (
                f"ablate: {tmp_path}/closed/out: Permission denied; valid is a place that this user may read "
                f"and write. Type: folder=<another>\n"
            )


class TestFilesThatAreSomethingElse:
    def test_a_reason_that_is_not_utf_8(self, file, verl, runs) -> None:
        runs[0].training.folder.mkdir(parents=True)
        (runs[0].training.folder / FAILURE).write_bytes(b"caf\xe9 ended with status 1\n")
        status, printed, _ = ablate("plan", file)
        assert status == 0
        assert "a/seed-1 failed:\ncaf� ended with status 1" in printed
        assert ablate("run", file, "--retry-failed")[0] == 0
        assert states(runs) == [State.FINISHED] * 3

    @pytest.mark.parametrize("name", [FAILURE, "attempt-1.jsonl"])
    def test_a_folder_in_its_place_stops_one_run(self, file, verl, runs, name: str) -> None:
        place = runs[0].training.folder / name
        place.mkdir(parents=True)
        for command in ("plan", "run"):
            status, printed, _ = ablate(command, file)
            assert "a/seed-1 unreadable:\n" in printed
            assert f"{place} cannot be read" in printed
            assert status == (command == "run")
        assert states(runs) == [State.UNREADABLE, State.FINISHED, State.FINISHED]
        place.rmdir()
        assert ablate("run", file)[0] == 0

    @pytest.mark.parametrize("name", ["run.json", "job.json"])
    def test_a_folder_in_the_place_of_a_record_is_named(self, file, verl, runs, name: str) -> None:
        (runs[0].training.folder / name).mkdir(parents=True)
        status, _, error = ablate("run", file)
        assert status == 1
        assert error.startswith(f"ablate: {runs[0].training.folder / name} is not the ")
        assert error.count("\n") == 1


class TestReport:
    @pytest.fixture
    def trained(self, file, verl, tmp_path) -> Path:
        assert ablate("run", file)[0] == 0
        return tmp_path / "out"

    def test_of_a_folder_that_cannot_be_written(self, trained: Path, tmp_path: Path) -> None:
        before = sorted(trained.rglob("*"))
        with read_only(trained):
            status, printed, error = ablate("report", trained)
            assert status == 1
            assert error == (
                f"ablate: {trained}/report.json: Permission denied; valid is a place that this user may read "
                f"and write. Type: --output <another folder>\n"
            )
            assert "b − a" in printed
            other = tmp_path / "new" / "folder"
            status, printed, _ = ablate("report", trained, "--output", other)
        assert status == 0
        assert (other / "report.html").is_file()
        assert f"{other}/report.html" in printed
        assert sorted(trained.rglob("*")) == before

    def test_of_a_full_disk(self, trained: Path) -> None:
        assert ablate("report", trained)[0] == 0
        before = {path: path.read_bytes() for path in trained.iterdir() if path.is_file()}
        with largest_file(500):
            status, _, error = ablate("report", trained)
        assert status == 1
        assert error.startswith(f"ablate: {trained}/report.json: File too large. Free space there, and run ")
        assert {path: path.read_bytes() for path in trained.iterdir() if path.is_file()} == before


class TestPlan:
    @pytest.mark.parametrize(
        ("override", "message"),
        [
            ("actor_rollout_ref.rollout.n=8.0", "rollout.n is 8.0; valid is an integer ≥ 1. Type: "),
            ("actor_rollout_ref.rollout.n=0", "rollout.n is 0; valid is an integer ≥ 1. Type: "),
            ("task.seed=one", "task.seed is one; valid is an integer ≥ 0. Type: task.seed=8"),
        ],
    )
    def test_numbers_with_which_verl_counts(self, tmp_path: Path, override: str, message: str) -> None:
        """Also where no estimator of ours compares responses."""
        base = ["+platform=cpu", "+task=chain_sum", override]
        file = written(tmp_path, axes={"algo": {"ppo": ["+algo=ppo"]}}, baseline=["ppo"], base=base)
        for command in ("plan", "run"):
            status, _, error = ablate(command, file)
            assert status == 1
            assert error.startswith("ablate: ppo/seed-1: ")
            assert message in error
        assert not (tmp_path / "out").exists()
