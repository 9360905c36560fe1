"""Test power and numbers of starts next to statsmodels, by quadrature, and as properties."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats
from statsmodels.stats.power import TTestPower

from grpo_verl_ext.ablation.measures import MANY, difference_sd, power, starts_needed

repeatable = settings(derandomize=True, deadline=None, max_examples=25)
levels = st.sampled_from([0.05, 0.04, 0.02, 0.01, 0.008])
spreads = st.floats(0.005, 0.2)


class TestPower:
    @pytest.mark.parametrize(
        ("difference", "sd", "starts", "alpha"),
        [(0.05, 0.044, 8, 0.04), (0.05, 0.044, 12, 0.01), (0.03, 0.044, 16, 0.05), (0.2, 0.03, 3, 0.01)],
    )
    def test_by_quadrature(self, difference: float, sd: float, starts: int, alpha: float) -> None:
        # T = (Z + δ) / √(V / df) with V chi-square: P(T > c) = E[Φ(δ − c·√(V / df))].
        df, delta = starts - 1, difference / sd * math.sqrt(starts)
        critical = stats.t.isf(alpha / 2, df)
        wanted, _ = integrate.quad(
            lambda v: stats.chi2.pdf(v, df) * stats.norm.cdf(delta - critical * math.sqrt(v / df)), 0, np.inf
        )
        assert power(difference, sd, starts, alpha) == pytest.approx(wanted, rel=1e-6)

    @given(spreads, st.integers(3, 40), levels)
    @repeatable
    def test_it_is_a_probability_even_where_scipys_is_nan(self, sd: float, starts: int, alpha: float) -> None:
        found = [power(difference, sd, starts, alpha) for difference in (0.01, 0.1, 1.0, 10.0)]
        assert all(0 <= each <= 1 for each in found)
        assert found == sorted(found)


class TestStarts:
    # G*Power, paired t-test, two-sided 5 %, 80 %: d = 0.5: 34 pairs; d = 0.8: 15; d = 1: 10.
    @pytest.mark.parametrize(("effect", "wanted"), [(0.5, 34), (0.8, 15), (1.0, 10)])
    def test_of_the_tables(self, effect: float, wanted: int) -> None:
        assert starts_needed(effect, 1.0, 0.05) == wanted

    def test_a_hopeless_spread_ends(self) -> None:
        assert starts_needed(1e-9, 1e9, 0.04) == MANY
        assert starts_needed(0.05, 0.0, 0.04) == 3

    @pytest.mark.parametrize(
        ("sd", "wanted"), [(0.001, 8), (0.045, 10), (0.05, 11), (1.0, 16), (math.nan, 16)]
    )
    def test_the_extension_stays_within_what_was_declared(self, sd: float, wanted: int) -> None:
        # d = 0.05 / 0.045 = 1.11 and 1.0 at 4 %: TTestPower gives 9.2 and 10.8 pairs.
        if math.isfinite(sd) and 8 < wanted < 16:
            pairs = TTestPower().solve_power(effect_size=0.05 / sd, alpha=0.04, power=0.8)
            assert math.ceil(pairs) == wanted
        assert starts_needed(0.05, sd, 0.04, first=8, most=16) == wanted


class TestDifferenceSd:
    def test_by_hand(self) -> None:
        # Rows minus their means: (−2, 0, 2) and (−1, 1, 0); column means of these: −1.5, 0.5, 1.
        # Residuals ±(0.5, 0.5, −1): sum of squares 3, one times two degrees; √(2 · 3 / 2) = √3.
        assert difference_sd(np.array([[1.0, 3.0, 5.0], [0.0, 2.0, 1.0]])) == pytest.approx(math.sqrt(3))

    @given(st.integers(0, 2**32 - 1))
    @repeatable
    def test_it_is_blind_to_variants_and_starts(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        values = rng.normal(size=(5, 8))
        moved = values + rng.normal(size=(5, 1)) + rng.normal(size=(1, 8))
        assert difference_sd(moved) == pytest.approx(difference_sd(values), rel=1e-9)
