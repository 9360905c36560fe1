"""What a grid claims before its first run: the primary number, the comparisons, the margin and the checks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

DECLARABLE = ("final", "area", "mean", "second_half")
"""Numbers of a curve that can be declared; `best` is left out, since it overstates a noisy curve."""

_DIRECTIONS = ("higher", "lower", "different", "equal")
"""What can be expected of a variant."""

FEWEST = 3
"""Fewer common starts are never decided."""


@dataclass
class Primary:
    """The number that the comparisons are about."""

    metric: str
    """Name of a metric of verl."""
    measure: str
    """One of `DECLARABLE`."""


@dataclass
class Starts:
    """Numbers of starts, each with a seed of its own, for a grid that may be extended once."""

    first: int
    """Starts after which the spread is estimated."""
    most: int
    """Largest number of starts."""


@dataclass
class VariantPair:
    """Two variants, the second one taken from the first."""

    variant: str
    against: str


@dataclass
class Expectation:
    """One comparison: a variant is expected to be higher, lower, different or equal."""

    variant: str
    is_: str
    """One of `_DIRECTIONS`."""
    against: Any = None
    """The other variant, or a number that theory predicts; None: the baseline."""
    minus: VariantPair | None = None
    """Another pair, whose difference is taken from that of this one: an interaction."""
    measure: str | None = None
    """Another one of `DECLARABLE` than the primary's; None: the primary's."""


@dataclass
class ManipulationCheck:
    """A manipulation check: without this, the runs did not exercise what the variants differ in."""

    metric: str
    measure: str
    """One of `DECLARABLE`."""
    at_least: float
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

    def comparison(self, baseline: str) -> Comparison:
        """The control as a comparison of this grid."""
        return Comparison((str(self.variant),), (self.against or baseline,), self.is_ or "not given")


@dataclass(frozen=True)
class Comparison:
    """A variant minus another or minus a number, or a difference of two such differences.

    Attributes:
        plus: variants whose numbers are added.
        less: variants whose numbers are taken away; empty with a ``number``.
        expected: one of `_DIRECTIONS`.
        number: taken away as well.
        measure: the one that is compared; None: the primary's.
    """

    plus: tuple[str, ...]
    less: tuple[str, ...]
    expected: str
    number: float | None = None
    measure: str | None = None

    @property
    def variants(self) -> tuple[str, ...]:
        """All variants that take part."""
        return *self.plus, *self.less

    @property
    def variant(self) -> str:
        """What comes first: a variant, or ``(a − b)``."""
        return self.plus[0] if len(self.plus) == 1 else f"({self.plus[0]} − {self.less[0]})"

    @property
    def against(self) -> str:
        """What is taken from it: a variant, a number, or ``(c − d)``."""
        if self.number is not None:
            return f"{self.number:g}"
        return self.less[0] if len(self.plus) == 1 else f"({self.less[1]} − {self.plus[1]})"

    def number_of(self, primary: Primary) -> Primary:
        """What is compared: the primary, or another measure of its metric."""
        return primary if self.measure is None else Primary(primary.metric, self.measure)


@dataclass
class Declaration:
    """The declared keys of a grid, the names that they refer to, and what follows from them."""

    primary: Primary | None
    margin: float | None
    alpha: float
    starts: Starts | None
    expect: list[Expectation]
    checks: list[ManipulationCheck]
    control: Control | None
    variants: list[str]
    baseline: str
    seeds: list[int]
    comparisons: list[Comparison] = field(init=False)
    """``expect`` with the baseline's name filled in."""
    compared: list[str] = field(init=False)
    """Variants that take part in a comparison."""
    spread_factor: float = field(init=False)
    """The largest standard deviation of a comparison, over that of a difference of two variants."""
    level: float = field(init=False)
    """The two-sided level of one comparison: alpha / number of comparisons, without Holm's gain."""
    usable: list[int] = field(init=False)
    """The seeds that verdicts may use: the first ``starts.most``."""

    def __post_init__(self) -> None:
        self.comparisons = [self._comparison_of(each) for each in self.expect]
        self.compared = list(dict.fromkeys(name for each in self.comparisons for name in each.variants))
        self.spread_factor = max([1.0, *(math.sqrt(len(each.variants) / 2) for each in self.comparisons)])
        self.level = self.alpha / max(1, len(self.expect))
        self.usable = self.seeds if self.starts is None else self.seeds[: self.starts.most]

    def _comparison_of(self, each: Expectation) -> Comparison:
        if _is_number(each.against):
            return Comparison((each.variant,), (), each.is_, float(each.against), each.measure)
        against = each.against or self.baseline
        plus, less = ((), ()) if each.minus is None else ((each.minus.against,), (each.minus.variant,))
        return Comparison((each.variant, *plus), (against, *less), each.is_, measure=each.measure)

    @property
    def subject(self) -> tuple[Primary, float]:
        """The primary and the margin that the comparisons are about.

        Raises:
            ValueError: nothing is compared.
        """
        if self.primary is None or self.margin is None:
            raise ValueError("the grid declares no comparison")
        return self.primary, self.margin

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
                f"{', '.join(DECLARABLE)}. Type: 'primary={{metric: <metric>, measure: area}}'"
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
        if self.primary is not None and self.primary.measure not in DECLARABLE:
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
        taken: dict[tuple[frozenset[str], str | None], int] = {}
        for index, (given, each) in enumerate(zip(self.expect, self.comparisons, strict=True)):
            yield from self._comparison(f"expect[{index}]", each, _DIRECTIONS)
            yield from self._number(f"expect[{index}]", given)
            if each.measure not in (None, *DECLARABLE):
                yield _not_a_measure(f"expect[{index}].measure", each.measure)
            measure = each.measure or (self.primary.measure if self.primary else None)
            earlier = taken.setdefault((frozenset((each.variant, each.against)), measure), index)
            if earlier != index:
                yield (
                    f"expect[{index}] compares {each.variant} with {each.against} as expect[{earlier}] does; "
                    f"valid is each pair once with a measure. Remove one of them"
                )

    def _comparison(self, key: str, given: Comparison, directions: tuple[str, ...]) -> Iterator[str]:
        where = (("variant", "minus.against"), ("against", "minus.variant"))
        for names, variants in zip(where, (given.plus, given.less), strict=True):
            for name, variant in zip(names, variants, strict=False):
                yield from self._unknown(f"{key}.{name}", [variant])
        for name in given.plus:
            if name in given.less:
                yield (
                    f"{key} compares {name} with itself; valid are different variants, and against is the "
                    f"baseline, {self.baseline}, unless it is given. Write against: <another variant>"
                )
        if given.expected not in directions:
            valid = ", ".join(directions)
            yield f"{key}.is is {given.expected!r}; valid are {valid}. Write is: {directions[0]}"

    def _number(self, key: str, given: Expectation) -> Iterator[str]:
        if not _is_number(given.against):
            return
        if not math.isfinite(given.against):
            yield f"{key}.against is {given.against}; valid is a variant or a finite number. Write against: 1"
        if given.minus is not None:
            yield f"{key} has a number in against, and minus, which needs two variants. Remove minus"
        if self.starts is not None:
            yield (
                f"{key} compares with a number, and starts is given, whose rule is about differences of two "
                "variants; valid is a fixed number of seeds. Remove starts"
            )

    def _checks(self) -> Iterator[str]:
        for index, each in enumerate(self.checks):
            if each.measure not in DECLARABLE:
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
            given = control.comparison(self.baseline)
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


def _is_number(value: object) -> bool:
    """Whether a comparison is with a number, and not with a variant."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _not_a_measure(key: str, value: str) -> str:
    return f"{key} is {value!r}; valid are {', '.join(DECLARABLE)}. Write measure: area"
