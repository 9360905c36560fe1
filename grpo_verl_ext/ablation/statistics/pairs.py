"""Differences of variants paired by seed, their tests, and how they are written in a sentence."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from grpo_verl_ext.ablation.declaration.comparisons import FEWEST, Comparison, Primary
from grpo_verl_ext.ablation.running.results import Results
from grpo_verl_ext.ablation.statistics.measures import NO_SPREAD, interval, values_of

# statsmodels is imported where it is needed: it takes half a second, and exploratory grids need none of it.


@dataclass(frozen=True)
class _PairedTests:
    """Paired t-tests, elementwise."""

    difference: NDArray[np.float64]
    sd: NDArray[np.float64]
    p: NDArray[np.float64]
    p_equal: NDArray[np.float64]


def paired_tests(differences: NDArray[np.float64], margin: float) -> _PairedTests:
    """Test differences of n pairs for being 0, and for being within ±margin (two one-sided tests).

    Args:
        differences: ``(…, n)`` with n ≥ 2 and some spread.

    Returns:
        Arrays ``(…)``.
    """
    from statsmodels.stats.weightstats import DescrStatsW

    *shape, count = differences.shape
    p = stats.ttest_1samp(differences, 0.0, axis=-1).pvalue
    p_equal = DescrStatsW(differences.reshape(-1, count).T).ttost_mean(-margin, margin)[0]
    mean, sd = differences.mean(axis=-1), differences.std(axis=-1, ddof=1)
    return _PairedTests(mean, sd, p, np.reshape(p_equal, shape))


def holm(p_values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Adjust the p-values of m comparisons by Holm's rule.

    Args:
        p_values: ``(…, m)``; NaN, a comparison that could not be tested, counts as 1 and keeps its place.
    """
    from statsmodels.stats.multitest import multipletests

    known = np.nan_to_num(p_values, nan=1.0)
    adjusted = np.apply_along_axis(lambda each: multipletests(each, method="holm")[1], -1, known)
    return np.where(np.isnan(p_values), np.nan, adjusted)


@dataclass(frozen=True)
class Pairs:
    """A comparison over the common starts of its variants; sd and p-values are NaN without a test."""

    by_seed: dict[int, float]
    difference: float | None
    """Their mean; None without a start, and where a value is NaN."""
    sd: float = math.nan
    p: float = math.nan
    p_equal: float = math.nan
    why: str | None = None
    """Why nothing is tested; None: it is."""

    @property
    def starts(self) -> int:
        """Number of common starts."""
        return len(self.by_seed)

    def interval(self, alpha: float) -> tuple[float, float] | None:
        """Student's t interval of level 1 − alpha; None where nothing is tested."""
        if self.difference is None or math.isnan(self.sd):
            return None
        return interval(self.difference, self.sd, self.starts, 1 - alpha)


def pairs_of(results: Results, comparison: Comparison, primary: Primary, margin: float) -> Pairs:
    """Pair and test the primary of a comparison over the declared starts that its variants have finished."""
    every = values_of(results, primary.metric, primary.measure)
    values = {name: every[name] for name in comparison.variants}
    usable = results.settings.declaration.usable
    common = [seed for seed in usable if all(seed in each for each in values.values())]
    by_seed = {
        seed: comparison.difference({name: each[seed] for name, each in values.items()}) for seed in common
    }
    unknown = [str(seed) for seed in common if not math.isfinite(by_seed[seed])]
    if unknown:
        return Pairs(by_seed, None, why=f"a value is NaN with seed {', '.join(unknown)}")
    difference = fmean(by_seed.values()) if by_seed else None
    if len(common) < FEWEST:
        everyone = "both" if len(values) == 2 else "all"
        return Pairs(by_seed, difference, why=f"fewer than {FEWEST} starts are finished by {everyone}")
    differences = np.array([*by_seed.values()])
    largest = max(abs(each[seed]) for seed in common for each in values.values())
    if differences.std() <= NO_SPREAD * largest:
        return Pairs(by_seed, difference, why="the difference is the same with every seed")
    tests = paired_tests(differences, margin)
    return Pairs(by_seed, difference, float(tests.sd), float(tests.p), float(tests.p_equal))


def measured(comparison: Comparison, primary: Primary, pairs: Pairs, alpha: float) -> str:
    """``gvpo − grpo, area of acc, 12 starts: +0.021 (−0.008 … 0.050)``, as far as it is known."""
    text = f"{comparison_name(comparison, primary)}, {starts_as_text(pairs.starts)}"
    if pairs.difference is None:
        return text
    text += f": {figures(pairs.difference, '+')}"
    ends = pairs.interval(alpha)
    return text if ends is None else f"{text} ({figures(ends[0])} … {figures(ends[1])})"


def comparison_name(comparison: Comparison, primary: Primary) -> str:
    """``gvpo − grpo, area of acc``."""
    measure = primary.measure.replace("_", " ")
    return f"{comparison.variant} − {comparison.against}, {measure} of {primary.metric}"


def starts_as_text(count: int) -> str:
    """``1 start``, ``12 starts``."""
    return f"{count} start" + ("" if count == 1 else "s")


def figures(value: float, sign: str = "") -> str:
    """Three decimals, or two figures where these would be zeros or one figure; with a true minus sign."""
    decimals = value == 0 or abs(value) >= 0.01
    text = f"{value:{sign}.3f}" if decimals else f"{value:{sign}.2g}"
    return text.replace("-", "−")


def p_text(p: float) -> str:
    """``p = 0.034``, in two figures below 0.01."""
    if p < 0.0001:
        return "p < 0.0001"
    return f"p = {p:.2g}" if p < 0.01 else f"p = {p:.3f}"
