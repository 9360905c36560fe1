"""What a grid claims before its first run: the primary number, the comparisons, the margin and the checks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from omegaconf import MISSING

MEASURES = ("final", "area", "mean", "second_half")
"""Numbers of a curve that can be declared; `best` is left out, since it overstates a noisy curve."""

DIRECTIONS = ("higher", "lower", "different", "equal")
"""What can be expected of a variant."""

FEWEST = 3
"""Fewer common starts are never decided."""


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


@dataclass(frozen=True)
class Comparison:
    """A variant minus another, and what is expected of the difference."""

    variant: str
    against: str
    expected: str
    """One of `DIRECTIONS`."""


@dataclass(frozen=True)
class Declaration:
    """The declared keys of a grid, and the names that they refer to."""

    primary: Primary | None
    margin: float | None
    alpha: float
    starts: Starts | None
    expect: list[Expectation]
    checks: list[Check]
    control: Control | None
    variants: list[str]
    baseline: str
    seeds: list[int]

    @property
    def comparisons(self) -> list[Comparison]:
        """``expect`` with the baseline's name filled in."""
        return [Comparison(each.variant, each.against or self.baseline, each.is_) for each in self.expect]

    @property
    def subject(self) -> tuple[Primary, float]:
        """The primary and the margin that the comparisons are about.

        Raises:
            ValueError: nothing is compared.
        """
        if self.primary is None or self.margin is None:
            raise ValueError("the grid declares no comparison")
        return self.primary, self.margin

    @property
    def compared(self) -> list[str]:
        """Variants that take part in a comparison."""
        return list(dict.fromkeys(name for each in self.comparisons for name in (each.variant, each.against)))

    @property
    def level(self) -> float:
        """The two-sided level of one comparison: alpha / number of comparisons, without Holm's gain."""
        return self.alpha / max(1, len(self.expect))

    @property
    def usable(self) -> list[int]:
        """The seeds that verdicts may use: the first ``starts.most``."""
        return self.seeds if self.starts is None else self.seeds[: self.starts.most]

    def contradictions(self) -> Iterator[str]:
        """Name what the declaration lacks, and what in it does not fit the grid, with what to type."""
        yield from self._missing()
        yield from self._numbers()
        yield from self._comparisons()
        yield from self._checks()
        if self.control is not None:
            yield from self._control(self.control)

    def _missing(self) -> Iterator[str]:
        given = [key for key in ("primary", "margin", "starts", "checks") if getattr(self, key)]
        if given and not self.expect and self.control is None:
            another = next((name for name in self.variants if name != self.baseline), "<variant>")
            yield (
                f"{given[0]} is given, but neither expect nor control: nothing is claimed. Type: "
                f"'expect=[{{variant: {another}, is: higher}}]', or remove {', '.join(given)}"
            )
        if self.starts is not None and self.control is not None and not self.expect:
            yield "starts is given, but expect is empty, which decides how many are needed. Remove starts"
        own_control = self.control is not None and self.control.variant is not None
        if (self.expect or own_control) and self.primary is None:
            yield (
                "primary is not given, which expect and control are about; valid is a metric and one of "
                f"{', '.join(MEASURES)}. Type: 'primary={{metric: <metric>, measure: area}}'"
            )
        if self.expect and self.margin is None:
            yield "margin is not given, the smallest difference that matters to expect. Type: margin=0.05"
        if self.expect and self.control is None:
            yield (
                "control is not given; without a positive control nothing tells variants that are equal from "
                "a setting that cannot show a difference. Add a variant that is known to differ, such as one "
                "with too high a learning rate, and type: 'control={variant: <variant>, is: lower}', or "
                "'control={grid: <folder of a grid with such a control>}'"
            )

    def _numbers(self) -> Iterator[str]:
        if self.primary is not None and self.primary.measure not in MEASURES:
            yield _not_a_measure("primary.measure", self.primary.measure)
        if self.margin is not None and not 0 < self.margin < math.inf:
            yield f"margin is {self.margin}; valid is a number > 0. Type: margin=0.05"
        if not 0 < self.alpha <= 0.5:
            yield f"alpha is {self.alpha}; valid is a number > 0 and ≤ 0.5. Type: alpha=0.04"
        if self.expect and self.starts is None and len(self.seeds) < FEWEST:
            yield (
                f"seeds has {len(self.seeds)}, with which nothing in expect can be decided; valid are at "
                f"least {FEWEST}. Type: 'seeds=[1,2,3,4,5,6,7,8]'"
            )
        if self.starts is not None:
            first, most, seeds = self.starts.first, self.starts.most, len(self.seeds)
            if not FEWEST <= first <= most <= seeds:
                wanted = max(FEWEST, min(first, seeds))
                yield (
                    f"starts is {{first: {first}, most: {most}}} with {seeds} seeds; valid is "
                    f"{FEWEST} ≤ first ≤ most ≤ number of seeds. Type: "
                    f"'starts={{first: {wanted}, most: {max(wanted, min(most, seeds))}}}'"
                    + (f" and at least {FEWEST} seeds" if seeds < FEWEST else "")
                )

    def _comparisons(self) -> Iterator[str]:
        taken: dict[frozenset[str], int] = {}
        for index, each in enumerate(self.comparisons):
            yield from self._comparison(f"expect[{index}]", each, DIRECTIONS)
            earlier = taken.setdefault(frozenset((each.variant, each.against)), index)
            if earlier != index:
                yield (
                    f"expect[{index}] compares {each.variant} with {each.against} as expect[{earlier}] does; "
                    f"valid is each pair once. Remove one of them"
                )

    def _comparison(self, key: str, given: Comparison, directions: tuple[str, ...]) -> Iterator[str]:
        for name, variant in (("variant", given.variant), ("against", given.against)):
            yield from self._unknown(f"{key}.{name}", [variant])
        if given.variant == given.against:
            yield (
                f"{key} compares {given.variant} with itself; valid are two variants, and against is the "
                f"baseline, {self.baseline}, unless it is given. Write against: <another variant>"
            )
        if given.expected not in directions:
            valid = ", ".join(directions)
            yield f"{key}.is is {given.expected!r}; valid are {valid}. Write is: {directions[0]}"

    def _checks(self) -> Iterator[str]:
        for index, each in enumerate(self.checks):
            if each.measure not in MEASURES:
                yield _not_a_measure(f"checks[{index}].measure", each.measure)
            if not math.isfinite(each.at_least):
                yield f"checks[{index}].at_least is {each.at_least}; valid is a number. Write at_least: 0.01"
            yield from self._unknown(f"checks[{index}].variants", each.variants)

    def _control(self, control: Control) -> Iterator[str]:
        if (control.variant is None) == (control.grid is None):
            yield (
                "control has "
                + ("neither variant nor grid" if control.grid is None else "both variant and grid")
                + "; valid is one of them. Type: 'control={variant: <variant>, is: lower}', or "
                "'control={grid: <folder of a grid with a control>}'"
            )
        elif control.variant is not None:
            given = Comparison(control.variant, control.against or self.baseline, control.is_ or "not given")
            yield from self._comparison("control", given, ("higher", "lower", "different"))
        elif control.is_ is not None or control.against is not None:
            yield "control has grid, and also is or against, which that grid declares. Remove is and against"

    def _unknown(self, key: str, names: list[str]) -> Iterator[str]:
        for name in names:
            if name not in self.variants:
                yield (
                    f"{key} has {name!r}, which is not a variant of the grid; valid are "
                    f"{', '.join(self.variants)}. Write one of them"
                )


def _not_a_measure(key: str, value: str) -> str:
    return f"{key} is {value!r}; valid are {', '.join(MEASURES)}. Write measure: area"
