"""Test the runner: finished runs are not repeated; a failed one is named and does not stop the others."""

import json
import os
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest
from filelock import FileLock

from grpo_verl_ext.ablation import run as runner
from grpo_verl_ext.ablation.grid import AblationError, GridRun
from grpo_verl_ext.ablation.run import go
from grpo_verl_ext.ablation.state import State, read_record, status_of
from grpo_verl_ext.runs.child_process import ProcessFailedError
from grpo_verl_ext.runs.metrics import TRAINED, Metrics
from grpo_verl_ext.runs.verl_run import VerlRun


class Heard:
    def __init__(self) -> None:
        self.words: list[str] = []

    def begin(self, run: GridRun) -> None:
        self.words.append(f"begin {run.name}")

    def metrics(self, run: GridRun, metrics: Metrics) -> None:
        self.words.append(f"step {max(metrics)}")

    def end(self, run: GridRun, reason: str | None) -> None:
        self.words.append(f"end {run.name} {status_of(run).state.value}")


@pytest.fixture
def grid(tmp_path: Path) -> list[GridRun]:
    return [
        GridRun(name, 1, VerlRun(tmp_path / name, [f"+algo={name}"], steps=2)) for name in ("a", "b", "c")
    ]


def trained(run: VerlRun, on_metrics: Callable[[Metrics], None]) -> None:
    """What verl leaves when it ends well."""
    run.last_checkpoint.mkdir(parents=True)
    (run.folder / "attempt-1.jsonl").write_text(
        json.dumps({"step": run.steps, "data": {TRAINED: run.steps}}) + "\n"
    )
    on_metrics(run.metrics())


@pytest.fixture
def verl(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """A stand-in for verl's process; the names in the set fail."""
    failing: set[str] = set()

    def go_(run: VerlRun, on_metrics: Callable[[Metrics], None]) -> None:
        if run.folder.name in failing:
            raise ProcessFailedError("the reason\nended with status 1")
        trained(run, on_metrics)

    monkeypatch.setattr(VerlRun, "go", go_)
    return failing


def test_all_runs_in_their_order_and_none_twice(tmp_path: Path, grid: list[GridRun], verl: set[str]) -> None:
    heard = Heard()
    assert go(tmp_path, grid[:1], heard, retry_failed=False) == []
    assert heard.words == ["begin a/seed-1", "step 2", "end a/seed-1 finished"]
    again = Heard()
    go(tmp_path, grid, again, retry_failed=False)
    assert [word for word in again.words if word.startswith("begin")] == ["begin b/seed-1", "begin c/seed-1"]


class _TwoAtOnce:
    """A stand-in for a cluster, which trains two runs in turns."""

    address = "http://127.0.0.1:1"
    at_once = 2

    def train(self, run: VerlRun, on_metrics: Callable[[Metrics], None]) -> Iterator[None]:
        yield
        trained(run, on_metrics)


def test_before_each_run_those_before_it_have_begun(
    tmp_path: Path, grid: list[GridRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A declared grid notes its beginning where no run is there, so once. A cluster's commit is not ours."""
    monkeypatch.setattr(runner, "POLL_SECONDS", 0.0)
    begun: list[int] = []
    go(
        tmp_path,
        grid,
        Heard(),
        retry_failed=False,
        cluster=_TwoAtOnce(),
        before_each=lambda _: begun.append(sum(run.training.folder.is_dir() for run in grid)),
    )
    assert begun == [0, 1, 2]
    record = read_record(grid[0])
    assert record is not None
    assert (record.git_revision, record.versions, record.machine) == (None, {}, None)


def test_a_failed_run_is_named_skipped_and_retried_when_asked(tmp_path, grid, verl) -> None:
    verl.add("b")
    assert go(tmp_path, grid, Heard(), retry_failed=False) == [grid[1]]
    assert [status_of(run).state for run in grid] == [State.FINISHED, State.FAILED, State.FINISHED]
    assert status_of(grid[1]).reason == "the reason\nended with status 1\n"

    verl.clear()
    heard = Heard()
    assert go(tmp_path, grid, heard, retry_failed=False) == [grid[1]]
    assert heard.words == []
    assert not status_of(grid[1]).is_to_do(retry_failed=False)
    assert go(tmp_path, grid, heard, retry_failed=True) == []
    assert status_of(grid[1]).state is State.FINISHED


def test_a_run_whose_metrics_are_corrupt_is_left_alone_and_the_others_go_on(tmp_path, grid, verl) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "attempt-1.jsonl").write_text("{\n")
    heard = Heard()
    go(tmp_path, grid, heard, retry_failed=True)
    assert [word for word in heard.words if word.startswith("begin")] == ["begin b/seed-1", "begin c/seed-1"]
    status = status_of(grid[0])
    assert status.state is State.UNREADABLE
    assert "a/attempt-1.jsonl, line 1, is no record" in str(status.reason)


def test_each_run_records_what_it_was_made_with(tmp_path, grid, verl) -> None:
    before = datetime.now(timezone.utc).replace(microsecond=0)
    go(tmp_path, grid, Heard(), retry_failed=False, inputs_of=lambda run: {"data.train_files": run.name})
    record = json.loads((tmp_path / "a" / "run.json").read_text())
    assert (record["variant"], record["seed"]) == ("a", 1)
    assert (record["overrides"], record["steps"]) == (["+algo=a"], 2)
    assert {"verl", "torch", "grpo-verl-ext"} <= record["versions"].keys()
    assert record["inputs"] == {"data.train_files": "a/seed-1"}
    assert f"{os.cpu_count()} cores" in record["machine"]
    began, ended = (datetime.fromisoformat(record[name]) for name in ("began", "ended"))
    assert before <= began <= ended <= datetime.now(timezone.utc)


def test_a_run_that_failed_has_not_ended(tmp_path, grid, verl) -> None:
    verl.add("a")
    go(tmp_path, grid, Heard(), retry_failed=False)
    first = json.loads((tmp_path / "a" / "run.json").read_text())
    assert "ended" not in first
    verl.clear()
    go(tmp_path, grid, Heard(), retry_failed=True)
    again = json.loads((tmp_path / "a" / "run.json").read_text())
    assert again == first | {name: again[name] for name in ("began", "ended")}


def test_a_run_that_was_begun_otherwise_is_refused(tmp_path, grid, verl) -> None:
    go(tmp_path, grid, Heard(), retry_failed=False)
    changed = GridRun("a", 1, VerlRun(tmp_path / "a", ["+algo=a", "trainer.x=1"], steps=3))
    with pytest.raises(
        AblationError,
        match=r"with other overrides: .*'steps': \['2'\].* now it is .*'steps': \['3'\].*trainer\.x=1",
    ):
        go(tmp_path, [changed], Heard(), retry_failed=False)


def test_one_process_a_folder(tmp_path, grid, verl) -> None:
    with FileLock(tmp_path / ".lock"), pytest.raises(AblationError, match="another process works in"):
        go(tmp_path, grid, Heard(), retry_failed=False)
