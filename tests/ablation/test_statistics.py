"""Test statistics by hand, against scipy, and as properties."""

import math

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from grpo_verl_ext.ablation.measures import (
    MEASURES,
    compare,
    summarize,
)

repeatable = settings(derandomize=True, deadline=None, max_examples=100)
values = st.lists(st.integers(-50, 50).map(lambda n: n / 8), min_size=2, max_size=9)


class TestSummary:
    def test_by_hand(self) -> None:
        # 1, 2, 3: mean 2, std 1; t with two degrees of freedom is 4.302653 at 97.5 %.
        found = summarize([1.0, 2.0, 3.0])
        assert (found["seeds"], found["mean"], found["std"]) == (3, 2.0, 1.0)
        half = 4.302652729911275 / math.sqrt(3)
        assert (found["low"], found["high"]) == (
            pytest.approx(2 - half, rel=1e-9),
            pytest.approx(2 + half, rel=1e-9),
        )

    def test_one_seed_has_no_interval(self) -> None:
        found = summarize([0.5])
        assert found == {"seeds": 1, "mean": 0.5, "std": None, "low": None, "high": None}


class TestComparison:
    def test_it_is_paired_by_seed(self) -> None:
        # The seeds differ by 10, the variants by 1 and 3: unpaired, nothing could be seen.
        found = compare({1: 11.0, 2: 23.0, 9: 0.0}, {1: 10.0, 2: 20.0, 7: 0.0})
        assert found is not None
        assert (found.seeds, found.difference) == (2, 2.0)

    @given(values, values)
    @repeatable
    def test_next_to_scipys_paired_test(self, left: list[float], right: list[float]) -> None:
        count = min(len(left), len(right))
        variant, baseline = dict(enumerate(left[:count])), dict(enumerate(right[:count]))
        found = compare(variant, baseline)
        assert found is not None
        if found.p is None:
            assert len({variant[seed] - baseline[seed] for seed in variant}) == 1
            return
        wanted = stats.ttest_rel(left[:count], right[:count])
        interval = wanted.confidence_interval(0.95)
        assert found.p == pytest.approx(wanted.pvalue, rel=1e-9, abs=1e-12)
        assert (found.low, found.high) == (
            pytest.approx(interval.low, rel=1e-9, abs=1e-9),
            pytest.approx(interval.high, rel=1e-9, abs=1e-9),
        )

    def test_no_common_seed(self) -> None:
        assert compare({1: 0.0}, {2: 0.0}) is None

    def test_one_seed_says_nothing_but_the_difference(self) -> None:
        found = compare({1: 2.0}, {1: 1.5})
        assert found is not None
        assert (found.difference, found.p, found.low, found.high) == (0.5, None, None, None)


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
    assert MEASURES["mean"](curve) == pytest.approx(mean, rel=1e-12)
    assert MEASURES["second_half"](curve) == pytest.approx(second_half, rel=1e-12)
