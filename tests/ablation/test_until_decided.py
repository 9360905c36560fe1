"""Test that a grid trains its first starts, extends once by the declared rule, and survives kills."""

import json
import math
import random
import re
from pathlib import Path

import numpy as np
import pytest
from statsmodels.stats.power import TTestPower

from grpo_verl_ext.ablation import run as runner
from grpo_verl_ext.ablation.report import Report
from grpo_verl_ext.ablation.results import read_results
from grpo_verl_ext.runs.child_process import ProcessFailedError
from grpo_verl_ext.runs.verl_run import TRAINED, VerlRun

DECLARED = {
    "axes": {"algo": {"base": [], "a": [], "b": [], "bad": []}},
    "seeds": [1, 2, 3, 4, 5, 6, 7, 8],
    "baseline": ["base"],
    "primary": {"metric": "acc", "measure": "final"},
    "margin": 0.1,
    "starts": {"first": 4, "most": 8},
    "expect": [{"variant": "a", "is": "higher"}, {"variant": "b", "is": "equal"}],
    "control": {"variant": "bad", "is": "lower"},
}
MEAN = {"base": 0.5, "a": 0.6, "b": 0.5, "bad": 0.1}


class Verl:
    """A stand-in that trains at once, and remembers what it trained."""

    def __init__(self) -> None:
        self.trained: list[str] = []
        self.killed_after: int | None = None
        self.failing: set[str] = set()
        self.silent: set[str] = set()

    def value(self, variant: str, seed: int) -> float:
        start = random.Random(seed).gauss(0, 0.15)
        return MEAN[variant] + start + random.Random(f"{variant} {seed}").gauss(0, 0.035)

    def go(self, run: VerlRun) -> None:
        variant, seed = run.folder.parent.name, int(run.folder.name.removeprefix("seed-"))
        if len(self.trained) == self.killed_after:
            raise KeyboardInterrupt
        if f"{variant} {seed}" in self.failing:
            raise ProcessFailedError("out of memory")
        self.trained.append(f"{variant} {seed}")
        data = {"timing_s/step": 3.0, TRAINED: run.steps}
        if variant not in self.silent:
            data["acc"] = self.value(variant, seed)
        (run.folder / "attempt-1.jsonl").write_text(json.dumps({"step": run.steps, "data": data}) + "\n")


@pytest.fixture
def verl(monkeypatch: pytest.MonkeyPatch, uncomposed: None) -> Verl:
    verl = Verl()
    monkeypatch.setattr(VerlRun, "go", lambda run, on_metrics: verl.go(run))
    monkeypatch.setattr(runner, "git_revision", lambda: None)
    monkeypatch.setattr(runner, "versions", dict)
    return verl


@pytest.fixture
def run(ablate, grid_file, tmp_path: Path):
    def run(folder: str = "out", *options: str, status: int = 0, **changes: object):
        file = grid_file(**DECLARED | changes, folder=str(tmp_path / folder))
        return ablate("run", file, *(options or ["--until-decided"]), status=status)

    return run


def needed(verl: Verl, first: int = 4) -> int:
    """By the spread of the compared variants' first starts, two comparisons at 2 % each."""
    starts = range(1, first + 1)
    values = np.array([[verl.value(name, seed) for seed in starts] for name in ("base", "a", "b")])
    residuals = values - values.mean(0) - values.mean(1, keepdims=True) + values.mean()
    sd = math.sqrt(2 * (residuals**2).sum() / (2 * (first - 1)))
    return math.ceil(TTestPower().solve_power(effect_size=0.1 / sd, alpha=0.02, power=0.8))


def sentences(output: str) -> list[str]:
    return [
        line
        for line in output.splitlines()
        if re.search(r"\w+ (is (higher|lower) than|equals|differs from) ", line)
    ]


def test_the_first_starts_then_one_extension_then_the_verdicts(run, verl: Verl, tmp_path: Path) -> None:
    wanted = needed(verl)
    assert 4 < wanted < 8
    finished = run()
    assert verl.trained == [f"{name} {seed}" for seed in range(1, wanted + 1) for name in MEAN]
    assert f"{wanted} seeds are trained, of at most 8" in finished.output
    assert re.search(r"After 4 seeds the SD of paired differences is 0\.\d+ \(6 degrees", finished.output)
    analysis = Report(read_results(tmp_path / "out"))
    said = [each.sentence for each in [*analysis.verdicts, *analysis.checks]]
    assert sentences(finished.output) == said
    assert [len(each.by_seed) for each in analysis.verdicts] == [wanted, wanted]
    assert analysis.warnings == []


def test_a_killed_grid_ends_like_an_unbroken_one(run, verl: Verl) -> None:
    """Before and among the first 16 runs, before and after the decision, and in the extension."""
    unbroken = run("unbroken")
    expected, verl.trained = verl.trained, []
    for kill in (0, 3, 15, 16, 17, 20):
        verl.killed_after = kill
        run("killed", status=130)
    verl.killed_after = None
    last = run("killed")
    assert verl.trained == expected
    assert sentences(last.output) == sentences(unbroken.output)


def test_what_is_compared_decides_and_the_control_does_not(run, verl: Verl, monkeypatch) -> None:
    """Neither its spread nor the size of any difference."""
    wanted = needed(verl)
    monkeypatch.setitem(MEAN, "a", 0.9)
    value = verl.value
    monkeypatch.setattr(verl, "value", lambda v, s: value(v, s) + (s % 3 if v == "bad" else 0))
    assert f"{wanted} seeds are trained" in run().output


def test_verdicts_use_no_start_that_the_rule_does_not_ask_for(run, verl: Verl, tmp_path: Path) -> None:
    """Else one could look, and train on."""
    wanted = needed(verl)
    before = sentences(run().output)
    run("out", "--jobs", "1")
    assert len(verl.trained) == 4 * 8
    analysis = Report(read_results(tmp_path / "out"))
    assert [each.sentence for each in [*analysis.verdicts, *analysis.checks]] == before
    assert [len(each.by_seed) for each in analysis.verdicts] == [wanted, wanted]
    (warning,) = analysis.warnings
    assert f"asks for {wanted} seeds: {8 - wanted} more are finished and not used" in warning


def test_a_failed_run_ends_it_before_the_decision(run, verl: Verl) -> None:
    verl.failing = {"a 2"}
    failed = run(status=1)
    assert "out of memory" in failed.output
    assert "The first 4 seeds are not all finished" in failed.output
    assert len(verl.trained) == 4 * 4 - 1
    verl.failing = set()
    run("out", "--until-decided")


def test_a_primary_that_is_not_logged_ends_it(run, verl: Verl) -> None:
    verl.silent = {"a"}
    failed = run(status=1)
    assert "acc is missing in a/seed-1, a/seed-2, a/seed-3, a/seed-4" in failed.stdout
    assert len(verl.trained) == 4 * 4


def test_a_grid_without_starts_is_refused(run, verl: Verl) -> None:
    refused = run(starts=None, status=1)
    assert re.search(r"without starts; .*'starts=\{first: 8, most: 16\}', or leave", refused.stderr)
    assert verl.trained == []


CHANGED_SOURCES = "0123456789ab" + "0" * 28 + "+changes"


def test_a_start_that_is_not_compared_leaves_the_grid_undecided(run, verl: Verl, tmp_path: Path) -> None:
    """Its files are those of a run at another commit; to run the same again would train nothing."""
    run()
    file = tmp_path / "out" / "a" / "seed-5" / "run.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"git_revision": "def"}))
    said = run(status=1).output
    assert "is left out: its commit is def" in said
    assert "the verdicts are not final" in said
    assert "run the same `ablate run` again" not in said


class TestChangedSources:
    @pytest.mark.parametrize("after", [0, 3])
    def test_no_declared_run_begins(self, run, verl: Verl, tmp_path: Path, monkeypatch, after: int) -> None:
        """Those before the change are kept, and the grid goes on once it is committed."""
        revision = lambda: CHANGED_SOURCES if len(verl.trained) >= after else "0" * 40  # noqa: E731
        monkeypatch.setattr(runner, "git_revision", revision)
        refused = run(status=1)
        assert "ablate: the checkout of grpo_verl_ext differs from its commit 0123456789ab" in refused.stderr
        assert len(verl.trained) == after
        monkeypatch.setattr(runner, "git_revision", lambda: "0" * 40)
        run()
        assert len(verl.trained) == len(set(verl.trained)) >= 16
        assert len(read_results(tmp_path / "out").beginnings) == 1

    def test_an_exploratory_grid_is_trained(self, run, verl: Verl, tmp_path: Path, monkeypatch) -> None:
        monkeypatch.setattr(runner, "git_revision", lambda: CHANGED_SOURCES)
        nothing = {"expect": [], "control": None, "primary": None, "margin": None, "starts": None}
        run("out", "--jobs", "1", seeds=[1], **nothing)
        (warning,) = Report(read_results(tmp_path / "out")).warnings
        assert warning.startswith("4 of 4 runs were begun from a checkout that differs from its commit")
