"""Test grids on full disks, in read-only folders, and with files that are not what they should be.

One sentence each, the other runs go on, and nothing that was there is lost.
"""

from pathlib import Path

import pytest
from limits import full, largest_file, read_only

from grpo_verl_ext.ablation.grid import FAILURE, GridRun, State, read_grid, runs_of


@pytest.fixture
def file(grid_file, verl: set[str], uncomposed: None) -> Path:
    return grid_file(axes={"algo": {label: [] for label in "abc"}}, seeds=[1], baseline=["a"])


@pytest.fixture
def runs(file: Path) -> list[GridRun]:
    return runs_of(read_grid(file))


def states(runs: list[GridRun]) -> list[State]:
    return [run.status().state for run in runs]


class TestRuns:
    def test_a_folder_that_cannot_be_written_stops_one_run(self, ablate, file, runs) -> None:
        runs[1].training.folder.mkdir(parents=True)
        with read_only(runs[1].training.folder):
            printed = ablate("run", file, status=1).stdout
            assert states(runs) == ["finished", "begun", "finished"]
        assert f"b/seed-1: {runs[1].training.folder}/run.json: Permission denied; valid is a place" in printed
        ablate("run", file)
        assert states(runs) == ["finished"] * 3

    def test_a_failure_that_no_file_can_take_is_printed(self, ablate, file, verl, runs) -> None:
        verl.add("b")
        full(runs[1].training.folder / FAILURE)
        printed = ablate("run", file, status=1).stdout
        assert "b/seed-1: the disk is full, says verl\nended with status 1\n" in printed
        assert f"{FAILURE}: No space left on device. Free space there, and" in printed
        assert states(runs) == ["finished", "begun", "finished"]

    def test_a_folder_in_which_nothing_can_be_made(self, ablate, file, tmp_path) -> None:
        (tmp_path / "closed").mkdir()
        with read_only(tmp_path / "closed"):
            ablate("plan", file, f"folder={tmp_path}/closed/out")
            refused = ablate("run", file, f"folder={tmp_path}/closed/out", status=1)
        assert refused.stderr.startswith(f"ablate: {tmp_path}/closed/out: Permission denied; ")
        assert refused.stderr.endswith("Type: folder=<another>\n")


class TestFilesThatAreSomethingElse:
    def test_a_reason_that_is_not_utf_8(self, ablate, file, runs) -> None:
        runs[0].training.folder.mkdir(parents=True)
        (runs[0].training.folder / FAILURE).write_bytes(b"caf\xe9 ended with status 1\n")
        assert "a/seed-1 failed:\ncaf� ended with status 1" in ablate("plan", file).stdout
        ablate("run", file)
        assert states(runs) == ["finished"] * 3

    @pytest.mark.parametrize("name", [FAILURE, "attempt-1.jsonl"])
    def test_a_folder_in_its_place_stops_one_run(self, ablate, file, runs, name: str) -> None:
        place = runs[0].training.folder / name
        place.mkdir(parents=True)
        for command, status in (("plan", 0), ("run", 1)):
            printed = ablate(command, file, status=status).stdout
            assert "a/seed-1 unreadable:\n" in printed
            assert f"{place} cannot be read" in printed
        assert states(runs) == ["unreadable", "finished", "finished"]
        place.rmdir()
        ablate("run", file)

    @pytest.mark.parametrize("name", ["run.json", "job.json"])
    def test_a_folder_in_the_place_of_a_record_is_named(self, ablate, file, runs, name: str) -> None:
        (runs[0].training.folder / name).mkdir(parents=True)
        error = ablate("run", file, status=1).stderr
        assert error.startswith(f"ablate: {runs[0].training.folder / name} is not the ")
        assert error.count("\n") == 1


class TestReport:
    @pytest.fixture
    def trained(self, ablate, file, tmp_path) -> Path:
        ablate("run", file)
        return tmp_path / "out"

    def test_of_a_folder_that_cannot_be_written(self, ablate, trained: Path, tmp_path: Path) -> None:
        before, other = sorted(trained.rglob("*")), tmp_path / "new" / "folder"
        with read_only(trained):
            refused = ablate("report", trained, status=1)
            assert refused.stderr.startswith(f"ablate: {trained}/report.json: Permission denied; ")
            assert refused.stderr.endswith("Type: --output <another folder>\n")
            assert "b − a" in refused.stdout
            assert f"{other}/report.html" in ablate("report", trained, "--output", other).stdout
        assert (other / "report.html").is_file()
        assert sorted(trained.rglob("*")) == before

    def test_of_a_full_disk(self, ablate, trained: Path) -> None:
        ablate("report", trained)
        before = {path: path.read_bytes() for path in trained.iterdir() if path.is_file()}
        with largest_file(500):
            error = ablate("report", trained, status=1).stderr
        assert error.startswith(f"ablate: {trained}/report.json: File too large. Free space there, and run ")
        assert {path: path.read_bytes() for path in trained.iterdir() if path.is_file()} == before


class TestPlan:
    @pytest.mark.parametrize(
        ("override", "message"),
        [
            ("actor_rollout_ref.rollout.n=8.0", "rollout.n is 8.0; valid is an integer ≥ 1. Type: "),
            ("task.seed=one", "task.seed is one; valid is an integer ≥ 0. Type: task.seed=8"),
        ],
    )
    def test_numbers_with_which_verl_counts(self, ablate, grid_file, tmp_path, override, message) -> None:
        """Also where no estimator of ours compares responses."""
        base = ["+platform=cpu", "+task=chain_sum", override]
        file = grid_file(axes={"algo": {"ppo": ["+algo=ppo"]}}, baseline=["ppo"], base=base, seeds=[1])
        for command in ("plan", "run"):
            error = ablate(command, file, status=1).stderr
            assert error.startswith("ablate: ppo/seed-1: ")
            assert message in error
        assert not (tmp_path / "out").exists()
