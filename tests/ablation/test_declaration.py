"""Test what a grid may declare, and that a declaration that contradicts the grid is refused by name."""

from pathlib import Path
from typing import get_args

import pandas as pd
import pytest

from grpo_verl_ext.ablation.declaration import (
    Comparison,
    Control,
    Expectation,
    GridSettings,
    ManipulationCheck,
    Measure,
    Primary,
    Starts,
)
from grpo_verl_ext.ablation.grid import AblationError, read_grid
from grpo_verl_ext.ablation.measures import measured

GRID = """
folder: somewhere
steps: 2
base: []
axes:
  algo: {grpo: [+algo=grpo], gvpo: [+algo=gvpo], ppo: [+algo=ppo], lr1e-3: [lr=1e-3]}
seeds: [1, 2, 3, 4, 5, 6]
baseline: [grpo]
metrics: [acc]
"""
DECLARATION = """
primary: {metric: gold_response/probability, measure: area}
margin: 0.05
alpha: 0.04
starts: {first: 3, most: 6}
expect:
  - {variant: gvpo, is: higher}
  - {variant: ppo, against: gvpo, is: equal}
checks:
  - {metric: actor/pg_clipfrac, measure: mean, at_least: 0.01, variants: [grpo]}
control: {variant: lr1e-3, is: lower}
"""


@pytest.fixture
def read(tmp_path: Path):
    def read(*overrides: str, text: str = GRID + DECLARATION) -> GridSettings:
        file = tmp_path / "grid.yaml"
        file.write_text(text)
        return read_grid(file, overrides)

    return read


def test_every_key_is_read(read) -> None:
    grid = read()
    assert grid.primary == Primary("gold_response/probability", "area")
    assert (grid.margin, grid.alpha, grid.starts) == (0.05, 0.04, Starts(first=3, most=6))
    assert grid.expect == [Expectation("gvpo", "higher"), Expectation("ppo", "equal", "gvpo")]
    assert grid.checks == [ManipulationCheck("actor/pg_clipfrac", "mean", 0.01, ["grpo"])]
    assert grid.control == Control("lr1e-3", "lower")


def test_the_baseline_is_filled_in(read) -> None:
    declared = read("starts={first: 3, most: 4}")
    pairs, of = (
        (("gvpo", "grpo", "higher"), ("ppo", "gvpo", "equal")),
        "mean over steps of gold_response/probability",
    )
    assert declared.comparisons == [
        Comparison(
            **{"name": f"{variant} − {against}, {of}", "of": of, "variant": variant, "against": against},
            **{"measure": "area", "expected": expected, "weights": {variant: 1, against: -1}},
        )
        for variant, against, expected in pairs
    ]
    assert declared.compared == ["gvpo", "grpo", "ppo"]
    assert declared.level == 0.02
    assert declared.usable == [1, 2, 3, 4]


def test_a_number_and_a_difference_of_differences(read) -> None:
    """What each is made of, its name, and its spread over that of a difference: of four terms, √2."""
    interaction = "{variant: gvpo, minus: {variant: ppo, against: lr1e-3}, is: higher}"
    of_number = read_one(read, "expect=[{variant: gvpo, against: 1, is: equal}]", without="starts")
    (found,) = of_number.comparisons
    assert (found.variant, found.against, found.weights, found.number) == ("gvpo", "1", {"gvpo": 1}, 1)
    assert of_number.spread_factor == 1
    (found,) = read_one(read, f"expect=[{interaction}]").comparisons
    assert (found.variant, found.against) == ("(gvpo − grpo)", "(ppo − lr1e-3)")
    assert found.weights == {"gvpo": 1, "grpo": -1, "ppo": -1, "lr1e-3": 1}
    declared = read_one(read, f"expect=[{interaction}, {{variant: gvpo, is: higher}}]")
    assert declared.compared == ["gvpo", "grpo", "lr1e-3", "ppo"]
    assert declared.spread_factor == pytest.approx(2**0.5)


def test_one_pair_by_two_measures(read) -> None:
    """Two comparisons, each with its share of the level."""
    final = "{variant: gvpo, is: higher, measure: final}"
    declared = read_one(read, f"expect=[{{variant: gvpo, is: higher}}, {final}]")
    assert [each.measure for each in declared.comparisons] == ["area", "final"]
    assert declared.level == 0.02


def test_the_measures_are_those_of_the_statistics_without_the_best() -> None:
    assert {*get_args(Measure)} == {*measured(pd.Series({1: 0.5}))} - {"best"}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("primary=null", r"primary is not given.*Type: 'primary=\{metric: <metric>, measure: area\}'"),
        ("margin=null", r"margin is not given.*Type: margin=0\.05"),
        ("control=null", r"control is not given; valid is a known difference.*Type: 'control=\{"),
        ("primary.measure=best", r"primary\.measure is 'best'; valid is 'final', 'area', 'mean' or 'second"),
        ("margin=0", r"margin is 0; .*greater than 0"),
        ("margin=.inf", r"margin is inf; .*less than inf"),
        ("alpha=0", r"alpha is 0; .*greater than 0"),
        ("alpha=0.51", r"alpha is 0\.51; .*less than or equal to 0\.5"),
        ("starts={first: 5, most: 4}", r"starts is \{first: 5, most: 4\}, .*; valid is 3 ≤ first ≤ most ≤ "),
        ("starts={first: 3, most: 7}", r"most: 7\}, and seeds has 6; .*Type: 'starts=\{first: 4, most: 8\}'"),
        ("starts={first: 2, most: 4}", r"starts is \{first: 2"),
        ("primary=${control}", r"grid\.yaml: primary\.variant=.* is not known; valid are primary\.metric"),
        ("expect=[{variant: x, is: higher}]", r"expect\[0\] has 'x'; .*variants grpo, gvpo, ppo"),
        ("expect=[{variant: gvpo, against: true, is: higher}]", r"expect\[0\] has 'True'"),
        ("expect=[{variant: grpo, is: higher}]", r"expect\[0\] compares grpo with itself"),
        ("expect=[{variant: gvpo, is: better}]", r"expect\[0\]\.is is 'better'; valid is 'higher', 'lower'"),
        ("expect=[{variant: gvpo, against: 1, is: equal}]", r"against is 1; .* remove minus and starts"),
        ("expect=[{variant: gvpo, against: .nan, is: equal}]", r"expect\[0\]\.against is nan; valid is"),
        (
            "expect=[{variant: gvpo, against: 1, minus: {variant: ppo, against: grpo}, is: equal}]",
            r"expect\[0\]\.against is 1; .* without minus",
        ),
        ("expect=[{variant: gvpo, minus: {variant: x, against: grpo}, is: higher}]", r"expect\[0\] has 'x'"),
        (
            "expect=[{variant: gvpo, minus: {variant: gvpo, against: ppo}, is: higher}]",
            r"expect\[0\] compares \(gvpo − grpo\) with itself",
        ),
        ("checks=[{metric: a, measure: mean, at_least: .nan}]", r"checks\[0\]\.at_least is nan"),
        ("checks=[{metric: a, measure: mean, at_least: 1, variants: [x]}]", r"checks\[0\]\.variants has 'x'"),
        ("control={}", r"control is \{\}; valid are variant and is, or grid alone\. Type: 'control="),
        ("control={variant: ppo, is: lower, grid: x}", r"control is \{variant: ppo, is: lower, grid: x\}"),
        ("control={variant: x, is: lower}", r"control has 'x'"),
        ("control={grid: x, is: lower}", r"control is \{is: lower, grid: x\}"),
    ],
)
def test_a_contradiction_is_named(read, override: str, message: str) -> None:
    with pytest.raises(AblationError, match=message):
        read_one(read, override)


def read_one(read, override: str, without: str | None = None) -> GridSettings:
    """Replace a key of the declaration as a whole, or a value in it; leave out another key."""
    key, _, value = override.partition("=")
    if "." in key or not value.startswith(("{", "[", "null")):
        return read(override)
    lines, keep = [], True
    for line in (GRID + DECLARATION).splitlines():
        if line and not line.startswith(" "):
            keep = not line.startswith((f"{key}:", f"{without}:"))
        lines += [line] if keep else []
    return read(text="\n".join([*lines, f"{key}: {value}"]))


CALIBRATION = "primary: {metric: a, measure: mean}\ncontrol: {variant: ppo, is: lower}\n"


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("", "primary={metric: a, measure: area}"),
        ("", "margin=0.05"),
        ("", "starts={first: 3, most: 3}"),
        ("", "checks=[{metric: a, measure: mean, at_least: 1}]"),
        (CALIBRATION, "starts={first: 3, most: 6}"),
    ],
)
def test_a_part_without_a_claim_is_named(read, text: str, given: str) -> None:
    key = given.partition("=")[0]
    with pytest.raises(AblationError, match=rf"{key} is given, but.*variant: gvpo.*or remove {key}"):
        read(given, text=GRID + text)


def test_seeds_that_can_decide_nothing_are_named(read) -> None:
    declared = DECLARATION.replace("starts: {first: 3, most: 6}\n", "")
    with pytest.raises(AblationError, match=r"^seeds has 2; valid is 3 ≤ "):
        read("seeds=[1,2]", text=GRID + declared)
