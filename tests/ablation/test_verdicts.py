"""Test the statistics and the rule of a verdict: next to libraries, at its boundaries, on simulated grids."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.power import TTestPower
from statsmodels.stats.weightstats import ttost_paired

from grpo_verl_ext.ablation.measures import difference_sd, holm, p_of_equality, starts_needed
from grpo_verl_ext.ablation.results import Verdict
from grpo_verl_ext.ablation.verdicts import outcome_of

repeatable = settings(derandomize=True, deadline=None, max_examples=25)


class TestEquality:
    @given(st.integers(0, 2**32 - 1), st.integers(3, 16))
    @repeatable
    def test_next_to_statsmodels(self, seed: int, count: int) -> None:
        left, right = np.random.default_rng(seed).normal(0.02, 0.03, size=(2, count))
        wanted = ttost_paired(left, right, -0.05, 0.05)[0]
        assert p_of_equality(left - right, 0.05) == pytest.approx(wanted, rel=1e-9)


class TestHolm:
    def test_by_hand(self) -> None:
        # Sorted .01 .02 .03 .04 times 4 3 2 1: .04 .06 .06 .04, made monotone: .04 .06 .06 .06.
        assert holm(np.array([0.03, 0.01, 0.04, 0.02])) == pytest.approx([0.06, 0.04, 0.06, 0.06])

    def test_a_comparison_that_was_not_tested_keeps_its_place(self) -> None:
        found = holm(np.array([0.01, math.nan, 0.02]))
        assert found[[0, 2]] == pytest.approx([0.03, 0.04])  # times 3 and 2, not 2 and 1
        assert math.isnan(found[1])


def decided(expected: str, difference: float, *, p: float, p_equal: float, comparisons=2, **adjusted) -> str:
    """The outcome at alpha 0.04; of two comparisons, 0.02 is the level of one."""
    usual = {"adjusted_p": p_equal if expected == "equal" else p}
    numbers = {"expected": expected, "difference": difference, "p": p, "p_equal": p_equal}
    return outcome_of(Verdict(**COMPARED, **numbers, **usual | adjusted), 0.04, comparisons)


COMPARED = {"variant": "a", "against": "b", "measure": "area", "by_seed": {}, "name": "", "weights": {}}
BELOW, ABOVE = math.nextafter(0.04, 0), math.nextafter(0.04, 1)


class TestRule:
    @pytest.mark.parametrize(
        ("expected", "difference", "wanted"),
        [
            *(("higher", 0.1, "shown"), ("higher", -0.1, "opposite"), ("lower", -0.1, "shown")),
            *(("lower", 0.1, "opposite"), ("different", 0.1, "shown"), ("different", -0.1, "shown")),
        ],
    )
    def test_a_significant_difference(self, expected: str, difference: float, wanted: str) -> None:
        for adjusted in (0.04, BELOW):
            assert decided(expected, difference, p=0.001, p_equal=1.0, adjusted_p=adjusted) == wanted
        assert decided(expected, difference, p=0.001, p_equal=1.0, adjusted_p=ABOVE) == "undecided"

    @pytest.mark.parametrize("expected", ["higher", "lower", "different"])
    def test_equivalence_takes_the_level_of_one_comparison(self, expected: str) -> None:
        assert decided(expected, 0.0, p=0.9, p_equal=0.02) == "equal within the margin"
        assert decided(expected, 0.0, p=0.9, p_equal=math.nextafter(0.02, 1)) == "undecided"

    def test_equality_that_was_expected(self) -> None:
        assert decided("equal", 0.0, p=0.9, p_equal=0.0, adjusted_p=0.04) == "shown"
        assert decided("equal", 0.0, p=0.9, p_equal=0.0, adjusted_p=ABOVE) == "undecided"
        assert decided("equal", 0.01, p=0.001, p_equal=0.001) == "shown"
        assert decided("equal", 0.1, p=0.02, p_equal=0.9) == "opposite"
        assert decided("equal", 0.1, p=math.nextafter(0.02, 1), p_equal=0.9) == "undecided"

    @pytest.mark.parametrize("expected", ["higher", "lower", "different", "equal"])
    def test_nan_decides_nothing(self, expected: str) -> None:
        assert decided(expected, 0.0, p=math.nan, p_equal=math.nan) == "undecided"


class TestSimulated:
    """4,000 grids of the whole procedure: 8 starts, the spread estimated, at most 16, Holm at alpha 0.04."""

    GRIDS = 4000
    ALPHA, FIRST, MOST, MARGIN = 0.04, 8, 16, 0.05
    START_SD, RESIDUAL_SD = 0.15, 0.031
    SD = math.sqrt(2) * RESIDUAL_SD

    def three_errors(self, share: float) -> float:
        return 3 * math.sqrt(share * (1 - share) / self.GRIDS)

    def simulate(self, differences: list[float]) -> tuple[list[list[str]], list[int]]:
        """Outcomes of each grid whose variants, expected to be higher, differ by this much; its starts."""
        rng, count = np.random.default_rng(17), len(differences)
        means = np.array([0.0, *differences])[:, None]
        starts = rng.normal(scale=self.START_SD, size=(self.GRIDS, 1, self.MOST))
        values = means + starts + rng.normal(scale=self.RESIDUAL_SD, size=(self.GRIDS, count + 1, self.MOST))
        sds, level = difference_sd(values[:, :, : self.FIRST]), self.ALPHA / count
        ends = np.array([starts_needed(self.MARGIN, float(sd), level, self.FIRST, self.MOST) for sd in sds])
        outcomes, names = list[list[str]](), ("difference", "p", "p_equal", "adjusted_p")
        for end in range(self.FIRST, self.MOST + 1):
            chosen = values[ends == end, :, :end]
            paired = chosen[:, 1:] - chosen[:, :1]
            p, p_equal = stats.ttest_1samp(paired, 0.0, axis=-1).pvalue, p_of_equality(paired, self.MARGIN)
            numbers = np.stack([paired.mean(axis=-1), p, p_equal, np.apply_along_axis(holm, -1, p)], axis=-1)
            for grid in numbers:
                of = [dict(zip(names, each, strict=True)) for each in grid]
                outcomes.append([decided("higher", **each, comparisons=count) for each in of])
        return outcomes, ends.tolist()

    def test_the_familywise_level(self) -> None:
        outcomes, ends = self.simulate([0.0] * 4)
        assert len(outcomes) == self.GRIDS
        assert {self.FIRST, self.MOST} < {*ends} | {self.FIRST}
        found = sum("shown" in grid or "opposite" in grid for grid in outcomes) / self.GRIDS
        assert found <= 0.05 + self.three_errors(0.05)
        # Holm's level of 4 two-sided tests with one baseline is a little below alpha.
        assert found >= 0.02

    @pytest.mark.parametrize(("comparisons", "more"), [(1, 0.09), (4, 0.05)])
    def test_the_power_at_the_margin(self, comparisons: int, more: float) -> None:
        """At least the closed form at the numbers of starts that the rule chose, with the level of the plan.

        It is more because a grid that ends early is one whose first starts scattered little, which makes its
        t larger: with one comparison, whose t has the same spread, by at most 0.09; and because Holm tests
        all but the smallest p of several at more than alpha / 4.
        """
        outcomes, ends = self.simulate([self.MARGIN] + [0.0] * (comparisons - 1))
        found = sum(grid[0] == "shown" for grid in outcomes) / self.GRIDS
        effect, level = self.MARGIN / self.SD, self.ALPHA / comparisons
        wanted = float(np.mean([TTestPower().power(effect, end, level) for end in ends]))
        assert wanted - self.three_errors(wanted) <= found <= wanted + more
        assert found >= 0.8
