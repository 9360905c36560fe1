"""Verdicts on the declared comparisons of a grid: shown, opposite, equal within the margin, undecided."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


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
    """Minutes of steps that the missing starts of both variants would take."""
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
