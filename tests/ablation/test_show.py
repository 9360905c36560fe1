"""Test what ``ablate`` shows: the plan by hand, and the report."""

from collections.abc import Callable
from pathlib import Path

import pytest

from grpo_verl_ext.ablation import terminal
from grpo_verl_ext.ablation.report import Report


@pytest.fixture
def grid(grid_file, tmp_path: Path, leave) -> Path:
    """Of three runs one is finished, one has failed, one is to do."""
    base, algos = ["actor_rollout_ref.rollout.name=vllm"], ("grpo", "dapo", "gvpo")
    axes = {"algo": {name: [f"+algo={name}"] for name in algos}}
    file = grid_file(folder=str(tmp_path), base=base, axes=axes, seeds=[1], baseline=["grpo"])
    leave("grpo", 1, {1: {"acc": 0.25, "timing_s/step": 60.0}, 2: {"acc": 0.5, "timing_s/step": 30.0}})
    failed = leave("dapo", 1, {1: {"acc": 0.25, "timing_s/step": 90.0}})
    (failed / "failed.txt").write_text("the reason\n")
    return file


@pytest.fixture
def shown(ablate, declared: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], str]:
    """Print the report of `declared`."""
    monkeypatch.setattr(terminal, "read_results", lambda _source: declared.results)
    monkeypatch.setattr(terminal, "Report", lambda _results: declared)
    return lambda: ablate("report", tmp_path).output


def test_a_report_begins_with_the_verdicts_and_ends_with_files(declared: Report, shown) -> None:
    lines = shown().splitlines()
    assert lines[:6] == [*(f"{each.label}: {each.sentence}" for each in declared.verdicts), ""]
    rest = [" ".join(line.split()) for line in lines[6:] if line.strip() and "─" not in line]
    assert rest[:6] == [
        "checks",
        "check variant value result",
        "actor/pg_clipfrac, mean, at least 0.01 ppo 0.00996 missed",
        "lr1e-3 lower than grpo lr1e-3 −0.25 passed",
        "means over seeds",
        f"variant {declared.results.settings.shown} seconds of steps "
        "tokens of rollouts peak memory of the actor, GB",
    ]
    assert rest[6:-3] == [f"{variant} 0.250 4 21 3.00" for variant in declared.results.variants]
    assert [Path(line).name for line in rest[-3:]] == ["report.json", "report.md", "report.html"]


def test_the_label_is_coloured_on_a_terminal(shown, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"FORCE_COLOR": "1", "COLORTERM": "truecolor", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    bold_white_on = "\x1b[1;37;48;2;0;105;74m"  # #00694a
    assert f"{bold_white_on}higher:\x1b[0m gvpo − grpo, area of" in shown()


def test_the_plan_by_hand(ablate, grid: Path) -> None:
    shown = ablate("plan", grid).output
    lines = [[cell.strip() for cell in line.strip("│ ").split("│")] for line in shown.splitlines()]
    rows = {name: cells for name, *cells in lines}
    assert rows["grpo"] == ["1", "finished", "2/2", "0.500", "45.0"]
    assert rows["dapo"] == ["1", "failed", "1/2", "0.250", "90.0"]
    assert rows["gvpo"] == ["1", "waiting", "0/2", "–", "–"]
    # Three steps are left of (60 + 30 + 90) / 3 s each.
    start = f"grpo-verl-ext ablate run {grid}"
    assert f"2 of 3 runs to do, about 3 min of steps. To start them: {start}\n" in shown
    assert "dapo/seed-1 failed:\nthe reason" in shown
