"""What a grid claims before its first run: the primary number, the comparisons, the margin and the checks."""

from __future__ import annotations

from dataclasses import dataclass, field

from omegaconf import MISSING

MEASURES = ("final", "area", "mean", "second_half")
"""Numbers of a curve that can be declared; `best` is left out, for it overstates a noisy curve."""

DIRECTIONS = ("higher", "lower", "different", "equal")
"""What can be expected of a variant."""


@dataclass
class Primary:
    """The number that the comparisons are about."""

    metric: str = MISSING
    """Name of a metric of verl."""
    measure: str = MISSING
    """One of `MEASURES`."""


@dataclass
class Starts:
    """Numbers of starts, each with a seed of its own, for a grid that may be extended once."""

    first: int = MISSING
    """Starts after which the spread is estimated."""
    most: int = MISSING
    """Largest number of starts."""


@dataclass
class Expectation:
    """One comparison: a variant is expected to be higher, lower, different or equal."""

    variant: str = MISSING
    is_: str = MISSING
    """One of `DIRECTIONS`."""
    against: str | None = None
    """The other variant; None: the baseline."""


@dataclass
class Check:
    """A manipulation check: without this, the runs did not exercise what the variants differ in."""

    metric: str = MISSING
    measure: str = MISSING
    """One of `MEASURES`."""
    at_least: float = MISSING
    """Smallest mean over a variant's runs with which the check is passed."""
    variants: list[str] = field(default_factory=list)
    """Variants that must pass; empty: all."""


@dataclass
class Control:
    """A positive control: a difference that is known to exist, which the grid must be able to show."""

    variant: str | None = None
    """A variant of this grid …"""
    is_: str | None = None
    """… and its expected direction: higher, lower or different."""
    against: str | None = None
    """The variant that it is compared with; None: the baseline."""
    grid: str | None = None
    """Instead: folder or compact file of a grid whose own control must be shown."""
