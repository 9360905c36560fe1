"""Test what ``ablate`` shows: the plan by hand, and how often it reads files."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from grpo_verl_ext.ablation import checks
from grpo_verl_ext.cli import app
from grpo_verl_ext.runs.metrics import Metrics
from grpo_verl_ext.runs.verl_run import VerlRun


@pytest.fixture
def grid(tmp_path: Path, leave) -> Path:
    """Of three runs one is finished, one has failed, one is to do."""
    file = tmp_path / "grid.yaml"
    file.write_text(
        f"folder: {tmp_path}\nsteps: 2\nbase: [actor_rollout_ref.rollout.name=vllm]\n"
        "axes: {algo: {grpo: [+algo=grpo], dapo: [+algo=dapo], gvpo: [+algo=gvpo]}}\n"
        "seeds: [1]\nbaseline: [grpo]\nmetrics: [acc]\n"
    )
    leave("grpo", 1, {1: step(0.25, 60.0), 2: step(0.5, 30.0)})
    failed = leave("dapo", 1, {1: step(0.25, 90.0)})
    (failed / "failed.txt").write_text("the reason\n")
    return file


def step(acc: float, seconds: float) -> dict[str, float]:
    return {"acc": acc, "timing_s/step": seconds}


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the metrics of each variant were read."""
    counted: Counter[str] = Counter()
    read = VerlRun.metrics

    def metrics(run: VerlRun) -> Metrics:
        counted[run.folder.parent.name] += 1
        return read(run)

    monkeypatch.setattr(VerlRun, "metrics", metrics)
    return counted


def test_the_plan_by_hand(grid: Path, reads: Counter[str]) -> None:
    shown = CliRunner().invoke(app, ["ablate", "plan", str(grid)])
    assert shown.exit_code == 0, shown.output
    rows = {
        cells[0]: cells[1:] for line in shown.output.splitlines() if (cells := line.strip("│ ").split("│"))
    }
    rows = {name.strip(): [cell.strip() for cell in cells] for name, cells in rows.items()}
    assert rows["grpo"] == ["1", "finished", "2/2", "0.500", "45.0"]
    assert rows["dapo"] == ["1", "failed", "1/2", "0.250", "90.0"]
    assert rows["gvpo"] == ["1", "waiting", "0/2", "–", "–"]
    # Two steps are left of (60 + 30 + 90) / 3 s each.
    start = f"grpo-verl-ext ablate run {grid}"
    assert f"1 of 3 runs to do, about 2 min of steps. To start them: {start}\n" in shown.output
    assert "dapo/seed-1 failed:\nthe reason" in shown.output
    assert reads == {"grpo": 1, "dapo": 1, "gvpo": 1}


def test_piped_tables_have_a_row_a_line_and_a_blank_line_after_them(
    grid: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the names are, and whatever the width of the terminal elsewhere."""
    monkeypatch.setenv("COLUMNS", "40")
    metric = "val-core/" + "long/" * 30 + "acc"
    label = "wide-" * 20 + "x"
    overrides = [f"metrics=[{metric}]", f"axes.algo.{label}=[+algo=grpo]"]
    shown = CliRunner().invoke(app, ["ablate", "plan", str(grid), *overrides])
    assert shown.exit_code == 0, shown.output
    lines = shown.output.splitlines()
    (row,) = [line for line in lines if line.startswith("│ wide-")]
    assert [cell.strip() for cell in row.strip("│ ").split("│")] == [label, "1", "waiting", "0/2", "–", "–"]
    assert len([line for line in lines if line.startswith("┃") and metric in line]) == 1
    end = next(number for number, line in enumerate(lines) if line.startswith("└"))
    assert lines[end + 1] == ""
    assert lines[end + 2].startswith("2 of 4 runs to do")


def test_a_redraw_reads_no_run_again(
    grid: Path, leave, reads: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    redraws: list[Counter[str]] = []

    def go(run: VerlRun, on_metrics: Callable[[Metrics], None]) -> None:
        """A training whose watcher is called twice."""
        for last in (1, 2):
            leave("gvpo", 1, {number: step(0.0, 30.0) for number in range(1, last + 1)})
            before = Counter(reads)
            on_metrics({last: {}})
            redraws.append(reads - before)

    monkeypatch.setattr(VerlRun, "go", go)
    monkeypatch.setattr(checks, "check", lambda _configs: None)
    shown = CliRunner().invoke(app, ["ablate", "run", str(grid)])
    assert shown.exit_code == 1, "one run has failed, and is not tried again"
    lines = shown.output.splitlines()
    assert lines[next(number for number, line in enumerate(lines) if line.startswith("└")) + 1] == ""
    assert redraws == [Counter()] * 2
    assert "To compare the runs: grpo-verl-ext ablate report" in shown.output
