"""Test numbers of curves, intervals and comparisons by hand."""

import math

import numpy as np
import pandas as pd
import pytest

from grpo_verl_ext.ablation.measures import compare, interval, measured


def test_an_interval_by_hand() -> None:
    # 1, 2, 3: mean 2, std 1; t with two degrees of freedom is 4.302653 at 97.5 %.
    half = 4.302652729911275 / math.sqrt(3)
    assert interval(np.array([1.0, 2.0, 3.0]), 0.95) == pytest.approx(
        (2.0, 1.0, 2 - half, 2 + half), rel=1e-9
    )
    mean, *others = interval(np.array([0.5]), 0.95)
    assert mean == 0.5
    assert np.isnan(others).all(), "one seed has no interval"


def test_a_comparison_is_paired_by_seed() -> None:
    # The seeds differ by 10, the variants by 1 and 3: unpaired, nothing could be seen.
    found = compare({1: 11.0, 2: 23.0, 9: 0.0}, {1: 10.0, 2: 20.0, 7: 0.0})
    assert found is not None
    assert (found.by_seed, found.difference) == ({1: 1.0, 2: 3.0}, 2.0)
    assert compare({1: 0.0}, {2: 0.0}) is None


@pytest.mark.parametrize(
    ("variant", "baseline", "difference"),
    [
        ({1: 2.0}, {1: 1.5}, 0.5),
        # 0.3 − 0.2 and 0.8 − 0.7 differ in the last bit alone.
        ({1: 0.3, 2: 0.8, 3: 0.9}, {1: 0.2, 2: 0.7, 3: 0.8}, 0.1),
    ],
)
def test_one_seed_and_rounding_are_no_spread(variant, baseline, difference: float) -> None:
    found = compare(variant, baseline)
    assert found is not None
    assert (found.p, found.low, found.high) == (None, None, None)
    assert found.difference == pytest.approx(difference, rel=1e-12)


@pytest.mark.parametrize(
    ("points", "mean", "second_half"),
    [
        ([(0, 1.0), (1, 2.0), (2, 6.0), (3, 4.0), (4, 5.0)], 3.6, 4.5),  # steps 3 and 4
        ([(1, 1.0), (2, 2.0), (3, 6.0), (4, 3.0), (5, 9.0)], 4.2, 6.0),  # steps 3, 4 and 5, after 2.5
        ([(1, 0.25)], 0.25, 0.25),
        ([(0, 0.25)], 0.25, 0.25),
    ],
)
def test_means_over_steps_by_hand(points: list[tuple[int, float]], mean: float, second_half: float) -> None:
    curve = pd.Series(dict(points))
    assert measured(curve)["mean"] == pytest.approx(mean, rel=1e-12)
    assert measured(curve)["second_half"] == pytest.approx(second_half, rel=1e-12)


def test_final_best_and_area_by_hand() -> None:
    curve = pd.Series({0: 0.25, 4: 0.75, 6: 0.5})
    assert (measured(curve)["final"], measured(curve)["best"]) == (0.5, 0.75)
    # (4 · 0.5 + 2 · 0.625) / 6.
    assert measured(curve)["area"] == pytest.approx(3.25 / 6)
    assert measured(pd.Series({4: 0.75}))["area"] == 0.75


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_the_best_value_does_not_depend_on_where_a_nan_stands(order: tuple[int, ...]) -> None:
    values = [math.nan, 0.5, 0.25]
    assert measured(pd.Series([values[index] for index in order]))["best"] == 0.5
    assert math.isnan(measured(pd.Series([math.nan]))["best"])
