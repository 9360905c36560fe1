"""Test what `ablate plan` says of a declared grid: cost, power, smallest difference, and what it lacks."""

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from statsmodels.stats.power import TTestPower

from grpo_verl_ext.ablation.grid import GridRun, keep_grid, read_grid, runs_of
from grpo_verl_ext.ablation.results import read_results, write_table

DECLARED: dict[str, Any] = {
    "steps": 10,
    "axes": {"algo": {"base": [], "a": [], "b": [], "bad": []}},
    "seeds": [*range(1, 17)],
    "baseline": ["base"],
    "primary": {"metric": "acc", "measure": "final"},
    "margin": 0.05,
    "starts": {"first": 8, "most": 16},
    "expect": [{"variant": "a", "is": "higher"}, {"variant": "b", "is": "equal"}],
    "control": {"variant": "bad", "is": "lower"},
}
EXPLORATORY = dict.fromkeys(("primary", "margin", "starts", "expect", "control"))
DIFFERENCES = [0.05, 0.02, 0.11, 0.08, 0.01, 0.03]
"""Of the pilot's two variants; its other variant is not compared here."""
SD = float(np.std(DIFFERENCES, ddof=1))

Plan = Callable[..., Result]


@pytest.fixture
def plan(ablate, grid_file, uncomposed: None) -> Plan:
    def plan(*options: object, status: int = 0, **changes: object) -> Result:
        return ablate("plan", grid_file(**DECLARED | changes), *options, status=status)

    return plan


@pytest.fixture
def finish(leave) -> Callable[[GridRun, float], None]:
    """Leave a run with steps of 6 seconds."""

    def finish(run: GridRun, value: float) -> None:
        steps = range(1, run.training.steps + 1)
        metrics = {step: {"acc": value, "timing_s/step": 6.0} for step in steps}
        leave(run.variant, run.seed, metrics, run.training.folder.parents[1])

    return finish


@pytest.fixture
def pilot(grid_of, finish, tmp_path: Path) -> Callable[..., Path]:
    """Of another metric, with 5 steps: its second variant differs by this much, and a third varies wildly."""

    def pilot(differences: list[float], *variants: str) -> Path:
        seeds, variants = [*range(1, len(differences) + 1)], ("base", "a", *variants)
        for run in runs_of(grid_of([*variants], ["other"], tmp_path / "pilot", steps=5, seeds=seeds)):
            difference = [0.0, differences[run.seed - 1], run.seed % 2][variants.index(run.variant)]
            finish(run, 0.5 + run.seed / 20 + difference)
        return tmp_path / "pilot"

    return pilot


def cells(output: str) -> dict[int, list[str]]:
    """Starts → runs, minutes, power, smallest difference."""
    line = r"^(\d+) seeds: (\d+) runs(?:, (\d+) minutes)?(?:: power ([\d.]+) for .*80%: ([\d.]+))?$"
    found = re.findall(line, output, re.MULTILINE)
    return {int(starts): [cell or "–" for cell in others] for starts, *others in found}


def wanted(sd: float, starts: int) -> list[Any]:
    """Power for 0.05 and smallest difference at 80 %, with two comparisons at 2 % each."""
    solver = TTestPower()
    effect = solver.solve_power(nobs=starts, alpha=0.02, power=0.8)
    power = solver.power(0.05 / sd, starts, 0.02)
    return [pytest.approx(power, abs=0.005), pytest.approx(effect * sd, abs=0.0005)]


@pytest.mark.parametrize("of_table", [False, True])
def test_a_pilot(plan: Plan, pilot, tmp_path: Path, of_table: bool) -> None:
    source = pilot(DIFFERENCES, "other")
    if of_table:
        source = write_table(read_results(source), tmp_path / "pilot.parquet")
    shown = plan("--pilot", source).output
    assert "2 comparisons of the last value of acc; margin 0.05; alpha 0.04, 0.02 for each" in shown
    assert f"{SD:.3f} (from {source}: base, a; 6 seeds; 5 degrees of freedom)" in shown
    found = cells(shown)
    assert [*found] == [8, 16]
    for starts, (runs, minutes, *numbers) in found.items():
        # 4 variants × 8 seeds × 10 steps × 6 s = 1920 s.
        assert (runs, minutes) == (str(4 * starts), str(4 * starts))
        assert [*map(float, numbers)] == wanted(SD, starts)
    needed = math.ceil(TTestPower().solve_power(effect_size=0.05 / SD, alpha=0.02, power=0.8))
    assert f"A difference of 0.05 takes {needed} seeds to be found with 80%." in shown


def test_a_difference_of_differences_has_twice_the_variance(plan: Plan, pilot) -> None:
    """The grid's numbers are those of the comparison that takes the most starts."""
    pair, other = {"variant": "a", "is": "higher"}, {"variant": "b", "against": "bad"}
    shown = plan("--pilot", pilot(DIFFERENCES), expect=[pair, {**pair, "minus": other}]).output
    assert f"of differences of differences: {SD * 2**0.5:.3f}" in shown
    for starts, (_, _, *numbers) in cells(shown).items():
        assert [*map(float, numbers)] == wanted(SD * 2**0.5, starts)


def test_the_runs_that_are_finished_here(plan: Plan, finish, pilot, tmp_path: Path) -> None:
    plan()
    settings = read_grid(tmp_path / "grid.yaml")
    keep_grid(settings)
    for run in runs_of(settings):
        if run.seed <= 6 and run.variant in ("base", "a"):
            finish(run, 0.5 + run.seed / 20 + (run.variant == "a") * DIFFERENCES[run.seed - 1])
    shown = plan().output
    assert "52 of 64 runs to do, about 52 min of steps" in shown
    assert f"{SD:.3f} (from {settings.folder}: base, a; 6 seeds; 5 degrees of freedom)" in shown
    assert cells(shown)[16][:2] == ["64", "64"]
    other = pilot([2 * each for each in DIFFERENCES])
    assert f"{2 * SD:.3f} (from {other}: " in plan("--pilot", other).output


@pytest.mark.parametrize(
    ("differences", "changes"),
    [(None, {}), (DIFFERENCES, {"primary": {"metric": "loss", "measure": "area"}}), ([0.1], {})],
)
def test_a_spread_that_is_not_known(plan: Plan, pilot, differences, changes) -> None:
    """Neither finished runs, nor a pilot with two starts of the primary."""
    options = ["--pilot", pilot(differences)] if differences else []
    shown = plan(*options, **changes).output
    assert re.search(r"The power is unknown: .* two common seeds .* Type: --pilot <", shown)
    assert cells(shown)[16] == ["64", "64" if differences else "–", "–", "–"]
    assert "takes" not in shown


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (EXPLORATORY, r"--pilot is nowhere, but the grid declares no comparison.*leave --pilot out"),
        ({}, r"nowhere has no grid\.json"),
    ],
)
def test_a_refusal(plan: Plan, changes: dict[str, object], message: str) -> None:
    assert re.search(message, plan("--pilot", "nowhere", status=1, **changes).stderr)
