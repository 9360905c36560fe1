"""Test that a declaration cannot change, appear or disappear once a run of the grid has begun."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grpo_verl_ext.ablation.declaration import Control, Expectation, ManipulationCheck, Primary, Starts
from grpo_verl_ext.ablation.grid import GRID, AblationError, GridSettings, keep_grid, runs_of
from grpo_verl_ext.ablation.results import read_results


@pytest.fixture
def declared(tmp_path: Path) -> GridSettings:
    axes = {"algo": {"a": [], "b": ["+algo=b"], "bad": []}}
    usual = {"steps": 2, "base": [], "axes": axes, "baseline": ["a"], "metrics": ["acc"]}
    claims = {"primary": Primary("acc", "area"), "margin": 0.05, "expect": [Expectation("b", "higher")]}
    claims |= {"checks": [ManipulationCheck("clip", "mean", 0.01)], "control": Control("bad", "lower")}
    seeds = {"seeds": [1, 2, 3, 4], "starts": Starts(3, 4)}
    return GridSettings(folder=str(tmp_path / "out"), **usual, **claims, **seeds)


def begin(settings: GridSettings) -> None:
    keep_grid(settings)
    runs_of(settings)[0].training.folder.mkdir(parents=True)


UNDECLARED = {"primary": None, "margin": None, "starts": None, "expect": [], "checks": [], "control": None}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"primary": Primary("acc", "final")}, 'primary: .*"area".*and now it is .*"final"'),
        ({"margin": 0.1}, r"margin: 0\.05, and now it is 0\.1; .*type folder=<another>"),
        ({"starts": Starts(3, 3)}, 'starts: .*"most": 4.*and now it is .*"most": 3'),
        ({"axes": {"algo": {"a": [], "b": ["x=2"], "bad": []}}}, "axes: .*now it is .*x=2"),
        ({"seed_overrides": ["x={seed}"]}, r"seed_overrides: .*and now it is .*x=\{seed"),
        ({"seeds": [1, 2, 4, 3]}, r"seeds: \[1, 2, 3, 4\], and now it is \[1, 2, 4, 3\]"),
        (UNDECLARED, r"begun with primary: .*, and now it is null"),
    ],
)
def test_a_changed_key_is_named_with_both_values(declared, changes: dict[str, Any], message: str) -> None:
    begin(declared)
    before = (Path(declared.folder) / GRID).read_bytes()
    with pytest.raises(AblationError, match=message):
        keep_grid(replace(declared, **changes))
    assert (Path(declared.folder) / GRID).read_bytes() == before
    keep_grid(declared)


def test_it_cannot_appear(declared: GridSettings) -> None:
    begin(replace(declared, **UNDECLARED))
    with pytest.raises(AblationError, match=r"without a declaration: they stay .*folder=<another>"):
        keep_grid(declared)
    keep_grid(replace(declared, **UNDECLARED, metrics=["acc", "loss"], seeds=[2, 9]))
    assert read_results(Path(declared.folder)).settings.seeds == [1, 2, 3, 4, 9]


def test_without_declared_starts_no_seed_may_follow(declared: GridSettings) -> None:
    """A part of them may be trained alone."""
    settings = replace(declared, starts=None)
    begin(settings)
    with pytest.raises(AblationError, match=r"seeds: \[1, 2, 3, 4\], and now it is \[1, 2, 3, 4, 9\]"):
        keep_grid(replace(settings, seeds=[1, 2, 3, 4, 9]))
    keep_grid(replace(settings, seeds=[2, 3]))
    assert read_results(Path(settings.folder)).settings.seeds == [1, 2, 3, 4]
