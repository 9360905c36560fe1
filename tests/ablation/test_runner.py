"""Test the runner: finished runs are not repeated; a failed one is named and does not stop the others."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import datetime, timezone
from pathlib import Path

import pytest
from filelock import FileLock
from omegaconf import OmegaConf

from grpo_verl_ext.ablation import run as runner
from grpo_verl_ext.ablation.declaration import GridSettings
from grpo_verl_ext.ablation.grid import AblationError, GridRun, runs_of
from grpo_verl_ext.ablation.run import check_records, go
from grpo_verl_ext.runs.verl_run import Metrics, VerlRun


class Heard:
    """A stand-in for rich's Live that remembers, without the times."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.console = self

    def print(self, line: str, style: str = "") -> None:
        self.words.append(line.partition(" ")[2])

    def update(self, text: object) -> None:
        self.words.append(str(text))

    @property
    def begun(self) -> list[str]:
        return [word.removesuffix(" begins") for word in self.words if word.endswith(" begins")]


@pytest.fixture
def settings(grid_of) -> GridSettings:
    algos = {name: [f"+algo={name}"] for name in ("a", "b", "c")}
    return grid_of(["a"], ["acc"], seeds=[1], seed_overrides=[], axes={"algo": algos})


@pytest.fixture
def grid(settings: GridSettings) -> list[GridRun]:
    return runs_of(settings)


def test_all_runs_in_their_order_and_none_twice(settings, grid: list[GridRun], verl) -> None:
    heard = Heard()
    go(settings, grid[:1], heard)
    assert heard.words == ["a/seed-1 begins", "now a/seed-1, step 2 of 2", "a/seed-1: finished"]
    again = Heard()
    go(settings, grid, again)
    assert again.begun == ["b/seed-1", "c/seed-1"]


class _TwoAtOnce:
    """A stand-in for a cluster, which trains two runs in turns."""

    address = "http://127.0.0.1:1"
    at_once = 2

    def train(self, run: VerlRun, job: None, on_metrics: Callable[[Metrics], None]) -> Iterator[None]:
        yield
        run.go(on_metrics)


def test_two_at_once_on_a_cluster_whose_commit_is_not_ours(settings, grid, verl, monkeypatch) -> None:
    monkeypatch.setattr(runner, "_POLL_SECONDS", 0.0)
    heard = Heard()
    go(settings, grid, heard, cluster=_TwoAtOnce())
    assert heard.words[:2] == ["a/seed-1 begins", "b/seed-1 begins"]
    assert [run.status().state for run in grid] == ["finished"] * 3
    record = grid[0].record()
    assert record is not None
    assert (record.git_revision, record.versions, record.machine) == (None, {}, None)


def test_a_failed_run_is_named_and_tried_again(settings, grid, verl) -> None:
    verl.add("b")
    go(settings, grid, Heard())
    assert [run.status().state for run in grid] == ["finished", "failed", "finished"]
    assert grid[1].status().reason == "the disk is full, says verl\nended with status 1\n"
    record = grid[1].training.folder / "run.json"
    first = json.loads(record.read_text())
    assert "ended" not in first

    verl.clear()
    go(settings, grid, heard := Heard())
    assert heard.begun == ["b/seed-1"]
    assert grid[1].status().state == "finished"
    again = json.loads(record.read_text())
    assert again == first | {name: again[name] for name in ("began", "ended")}


@pytest.mark.parametrize("when", ["before", "while it trains"])
def test_a_run_whose_metrics_are_corrupt_ends_no_other(settings, grid, verl, monkeypatch, when) -> None:
    trained, heard, first = VerlRun.go, Heard(), grid[0].training.folder

    def train(run: VerlRun, on_metrics: Callable[[Metrics], None]) -> None:
        if run.folder == first:
            (first / "attempt-1.jsonl").write_text("{\n")
            run.metrics()
        trained(run, on_metrics)

    monkeypatch.setattr(VerlRun, "go", train)
    if when == "before":
        first.mkdir(parents=True)
        (first / "attempt-1.jsonl").write_text("{\n")
    go(settings, grid, heard)
    assert heard.begun == ["a/seed-1"] * (when != "before") + ["b/seed-1", "c/seed-1"]
    assert [run.status().state for run in grid] == ["unreadable", "finished", "finished"]
    assert "a/seed-1/attempt-1.jsonl, line 1, is no record" in str(grid[0].status().reason)
    assert not (first / "failed.txt").exists()


def test_each_run_records_what_it_was_made_with(settings, tmp_path, grid, verl) -> None:
    before = datetime.now(timezone.utc).replace(microsecond=0)
    (tmp_path / "train").write_bytes(b"abc")
    config = OmegaConf.create({"data": {"train_files": str(tmp_path / "train")}})
    go(settings, grid, Heard(), configs={run.name: config for run in grid})
    record = json.loads((tmp_path / "a" / "seed-1" / "run.json").read_text())
    assert (record["variant"], record["seed"]) == ("a", 1)
    assert (record["overrides"], record["steps"]) == (["+algo=a"], 2)
    assert {"verl", "torch", "grpo-verl-ext"} <= record["versions"].keys()
    assert record["inputs"] == {"data.train_files": hashlib.sha256(b"abc").hexdigest()}
    assert f"{os.cpu_count()} cores" in record["machine"]
    began, ended = (datetime.fromisoformat(record[name]) for name in ("began", "ended"))
    assert before <= began <= ended <= datetime.now(timezone.utc)


@pytest.mark.parametrize(
    ("overrides", "steps", "message"),
    [
        (["y=1", "x=1", "x=2", "z=1"], 3, r"\['steps=2'\], and now it is \['steps=3', 'z=1'\]"),
        (["y=1", "x=2", "x=1"], 2, r"'x=1', 'x=2'.* and now it is .*'x=2', 'x=1'"),
        (["y=1", "x=1", "x=2"], 2, None),
    ],
)
def test_a_run_that_was_begun_otherwise_is_refused(tmp_path: Path, overrides, steps: int, message) -> None:
    """Between keys the order says nothing; of one key, the last override counts."""
    record = {"overrides": ["x=1", "x=2", "y=1"], "steps": 2, "git_revision": None, "versions": {}}
    (tmp_path / "run.json").write_text(json.dumps(record))
    refused = pytest.raises(AblationError, match=f"with other overrides: .*{message}")
    with refused if message else nullcontext():
        check_records([GridRun("a", 1, "a/seed-1", VerlRun(tmp_path, overrides, steps))])


def test_one_process_a_folder(settings, tmp_path, grid, verl) -> None:
    with FileLock(tmp_path / ".lock"), pytest.raises(AblationError, match="another process works in"):
        go(settings, grid, Heard())
