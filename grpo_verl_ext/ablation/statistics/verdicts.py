"""Verdicts on the declared comparisons of a grid: shown, opposite, equal within the margin, undecided."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray
from scipy import stats


class Outcome(str, Enum):
    """What a declared comparison came to."""

    SHOWN = "shown"
    OPPOSITE = "opposite"
    EQUAL = "equal within the margin"
    UNDECIDED = "undecided"
    BLIND = "blind"
    """The positive control was missed: nothing is claimed."""
    NOT_EXERCISED = "not exercised"
    """A manipulation check was missed."""


@dataclass(frozen=True)
class Verdict:
    """One declared comparison: a variant minus another over their common starts, paired by seed."""

    variant: str
    against: str
    expected: str
    """higher, lower, different or equal."""
    outcome: Outcome
    starts: int
    """Number of common starts."""
    difference: float | None
    """Mean of ``by_seed``."""
    low: float | None
    high: float | None
    """Interval of level 1 − alpha: Student's t on the differences."""
    p: float | None
    """Two-sided paired t-test."""
    adjusted_p: float | None
    """After Holm over all comparisons; of ``p_equal`` where ``expected`` is equal."""
    p_equal: float | None
    """Equivalence within ±margin: the larger p of two one-sided paired t-tests."""
    by_seed: dict[int, float]
    """Seed → difference."""
    starts_needed: int | None
    """Starts with which a difference of ``margin`` is found with 80 %; None where the spread is unknown."""
    minutes_needed: float | None
    """Minutes of steps that the missing starts of both variants would take; None if none is missing."""
    sentence: str


@dataclass(frozen=True)
class CheckResult:
    """A manipulation check of one variant, or the positive control."""

    name: str
    variant: str
    value: float | None
    """Mean over the variant's runs, or the control's difference; None: not measured."""
    passed: bool
    is_control: bool
    sentence: str


@dataclass(frozen=True)
class PairedTests:
    """Paired t-tests, elementwise."""

    difference: NDArray[np.float64]
    sd: NDArray[np.float64]
    p: NDArray[np.float64]
    p_equal: NDArray[np.float64]


def paired_tests(differences: NDArray[np.float64], margin: float) -> PairedTests:
    """Test differences of n pairs for being 0, and for being within ±margin.

    With d their mean, s their standard deviation and F Student's t with n − 1 degrees of freedom:
    p = 2·F(−|d|·√n/s), p_equal = max(F(−(margin + d)·√n/s), F(−(margin − d)·√n/s)).

    Args:
        differences: ``(…, n)`` with n ≥ 2 and some spread.

    Returns:
        Arrays ``(…)``.
    """
    count = differences.shape[-1]
    difference = differences.mean(axis=-1)
    sd = differences.std(axis=-1, ddof=1)
    scale = np.sqrt(count) / sd
    p = 2 * stats.t.sf(np.abs(difference) * scale, count - 1)
    p_equal = stats.t.sf((margin - np.abs(difference)) * scale, count - 1)
    return PairedTests(difference, sd, p, p_equal)


def holm(p_values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Adjust the p-values of m comparisons: p_(i) becomes max_{j ≤ i} min(1, (m − j + 1)·p_(j)).

    A closed form on arrays, for statsmodels' takes one grid at a time and a tenth of a second.

    Args:
        p_values: ``(…, m)``; NaN, a comparison that could not be tested, counts as 1 and keeps its place.
    """
    count = p_values.shape[-1]
    known = np.nan_to_num(p_values, nan=1.0)
    order = np.argsort(known, axis=-1)
    steps = np.take_along_axis(known, order, axis=-1) * np.arange(count, 0, -1)
    rising = np.minimum(np.maximum.accumulate(steps, axis=-1), 1.0)
    adjusted = np.empty_like(known)
    np.put_along_axis(adjusted, order, rising, axis=-1)
    return np.where(np.isnan(p_values), np.nan, adjusted)


def declared_p(expected: str, p: float, p_equal: float) -> float:
    """The p-value of what is expected, which enters `holm`."""
    return p_equal if expected == "equal" else p


def outcome_of(
    expected: str,
    difference: float,
    *,
    p: float,
    p_equal: float,
    adjusted_p: float,
    alpha: float,
    comparisons: int,
) -> Outcome:
    """Decide one comparison.

    What is expected is shown at ``adjusted_p`` ≤ alpha, and its opposite direction likewise, the test being
    two-sided. What was not expected (equivalence, or a difference where equal was expected) is not in
    Holm's family: it takes p ≤ alpha / comparisons, so that nothing is easier to claim than what was
    declared. NaN decides nothing.
    """
    found, single = adjusted_p <= alpha, alpha / comparisons
    if expected == "equal":
        if found:
            return Outcome.SHOWN
        return Outcome.OPPOSITE if p <= single else Outcome.UNDECIDED
    if found:
        as_expected = expected == "different" or (difference > 0) == (expected == "higher")
        return Outcome.SHOWN if as_expected else Outcome.OPPOSITE
    return Outcome.EQUAL if p_equal <= single else Outcome.UNDECIDED
