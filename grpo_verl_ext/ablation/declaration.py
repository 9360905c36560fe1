"""What a grid claims before its first run: the primary number, the comparisons, the margin and the checks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from grpo_verl_ext.utils.documents import Document

Measure = Literal["final", "area", "mean", "second_half"]
"""Numbers of a curve that can be declared; `best` is left out, since it overstates a noisy curve."""

FEWEST = 3
"""Fewer common starts are never decided."""


@dataclass
class Primary:
    """The number that the comparisons are about: a measure of a metric of verl."""

    metric: str
    measure: Measure

    def __str__(self) -> str:
        return f"{self.measure.replace('_', ' ')} of {self.metric}"


@dataclass
class Starts:
    """Numbers of starts, each with a seed of its own, for a grid that may be extended once."""

    first: int
    """Starts after which the spread is estimated."""
    most: int


@dataclass
class VariantPair:
    """Two variants, the second one taken from the first."""

    variant: str
    against: str


@dataclass
class Expectation:
    """One comparison: a variant is expected to be higher, lower, different or equal."""

    variant: str
    is_: Literal["higher", "lower", "different", "equal"]
    against: Any = None
    """The other variant, or a number that theory predicts; None: the baseline."""
    minus: VariantPair | None = None
    """Another pair, whose difference is taken from that of this one: an interaction."""
    measure: Measure | None = None
    """None: the primary's."""


@dataclass
class ManipulationCheck:
    """A manipulation check: without this, the runs did not exercise what the variants differ in."""

    metric: str
    measure: Measure
    at_least: Annotated[float, Field(gt=-math.inf, lt=math.inf)]
    """Smallest mean over a variant's runs with which the check is passed."""
    variants: list[str] = field(default_factory=list)
    """Variants that must pass; empty: all."""

    def __str__(self) -> str:
        return f"{self.metric}, {self.measure.replace('_', ' ')}, at least {self.at_least:g}"


@dataclass
class Control:
    """A positive control: a known difference between two variants of this grid, or that of another grid."""

    variant: str | None = None
    is_: Literal["higher", "lower", "different"] | None = None
    against: str | None = None
    """The variant that it is compared with; None: the baseline."""
    grid: str | None = None
    """Instead: folder or table of a grid whose own control must be shown."""


@dataclass(frozen=True)
class Comparison:
    """A variant minus another or minus a number, or a difference of two such differences."""

    plus: tuple[str, ...]
    """Variants whose numbers are added."""
    less: tuple[str, ...]
    """Variants whose numbers are taken away; empty with a ``number``."""
    expected: str
    number: float | None = None
    """Taken away as well."""
    measure: Measure | None = None
    """None: the primary's."""

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

    def difference(self, values: Mapping[str, float]) -> float:
        """The number that is expected to be higher or lower than 0, from the number of each variant."""
        taken = sum(values[name] for name in self.less) + (self.number or 0.0)
        return sum(values[name] for name in self.plus) - taken


@dataclass(kw_only=True)
class Declaration(Document):
    """The keys of a grid that its declaration is made of."""

    axes: dict[str, dict[str, list[str]]]
    """Axis → label → overrides. Axes are crossed; overrides that belong together share a label."""
    seeds: list[int]
    """Every variant is trained with every seed."""
    baseline: list[str]
    """One label per axis, in order: the variant that the others are compared with."""
    primary: Primary | None = None
    """The number that ``expect`` is about."""
    margin: Annotated[float, Field(gt=0, lt=math.inf)] | None = None
    """Smallest difference that matters, in units of the primary."""
    alpha: Annotated[float, Field(gt=0, le=0.5)] = 0.04
    """Two-sided level over all comparisons of ``expect``."""
    starts: Starts | None = None
    """Numbers of starts for ``ablate run --until-decided``."""
    expect: list[Expectation] = field(default_factory=list)
    """Comparisons that the grid is made for; empty: an exploratory grid."""
    checks: list[ManipulationCheck] = field(default_factory=list)
    """Manipulation checks."""
    control: Control | None = None
    """Positive control."""

    @property
    def is_declared(self) -> bool:
        """Whether the grid claims something; otherwise it is exploratory."""
        return bool(self.expect) or self.control is not None

    @property
    def overrides(self) -> dict[str, list[str]]:
        """Name of each variant, its labels joined → its own overrides."""
        found = {}
        for choices in product(*(axis.items() for axis in self.axes.values())):
            found["-".join(label for label, _ in choices)] = [each for _, own in choices for each in own]
        return found

    @property
    def variants(self) -> list[str]:
        """Names of the variants."""
        return list(self.overrides)

    @property
    def base_variant(self) -> str:
        """The variant of ``baseline``."""
        return "-".join(self.baseline)

    @property
    def comparisons(self) -> list[Comparison]:
        """``expect`` with the baseline's name filled in."""
        found = []
        for each in self.expect:
            plus, less, number = [each.variant], [each.against or self.base_variant], None
            if _is_number(each.against):
                less, number = [], float(each.against)
            elif each.minus is not None:
                plus, less = [*plus, each.minus.against], [*less, each.minus.variant]
            found.append(Comparison((*plus,), (*less,), each.is_, number, each.measure))
        return found

    @property
    def own_control(self) -> Comparison | None:
        """The control as a comparison of this grid; None: it is another grid's, or there is none."""
        if self.control is None or self.control.variant is None:
            return None
        against = self.control.against or self.base_variant
        return Comparison((self.control.variant,), (against,), str(self.control.is_))

    @property
    def compared(self) -> list[str]:
        """Variants that take part in a comparison."""
        return list(dict.fromkeys(name for each in self.comparisons for name in each.variants))

    @property
    def spread_factor(self) -> float:
        """The largest standard deviation of a comparison, over that of a difference of two variants."""
        return max([1.0, *(math.sqrt(len(each.variants) / 2) for each in self.comparisons)])

    @property
    def level(self) -> float:
        """The two-sided level of one comparison: alpha / number of comparisons, without Holm's gain."""
        return self.alpha / max(1, len(self.expect))

    @property
    def usable(self) -> list[int]:
        """The seeds that verdicts may use: the first ``starts.most``."""
        return self.seeds if self.starts is None else self.seeds[: self.starts.most]


def _is_number(value: object) -> bool:
    """Whether a comparison is with a number, and not with a variant."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def contradictions(grid: Declaration) -> Iterator[str]:
    """Name what a declaration lacks, and what in it does not fit the grid, with what to type."""
    yield from _missing(grid)
    yield from _starts(grid)
    yield from _comparisons(grid)
    for index, check in enumerate(grid.checks):
        yield from _unknown(grid, f"checks[{index}].variants", check.variants)
    if grid.control is not None:
        yield from _control(grid, grid.control)


def _missing(grid: Declaration) -> Iterator[str]:
    given = [key for key in ("primary", "margin", "starts", "checks") if getattr(grid, key)]
    if given and not grid.is_declared:
        another = next((name for name in grid.variants if name != grid.base_variant), "<variant>")
        yield (
            f"{given[0]} is given, but neither expect nor control: nothing is claimed. Type: "
            f"'expect=[{{variant: {another}, is: higher}}]', or remove {', '.join(given)}"
        )
    if grid.starts is not None and not grid.expect:
        yield "starts is given, but expect is empty, which decides how many are needed. Remove starts"
    if (grid.expect or grid.own_control) and grid.primary is None:
        yield (
            "primary is not given, which expect and control are about; valid is a metric and one of "
            f"{', '.join(get_args(Measure))}. Type: 'primary={{metric: <metric>, measure: area}}'"
        )
    if grid.expect and grid.margin is None:
        yield "margin is not given, the smallest difference that matters to expect. Type: margin=0.05"
    if grid.expect and grid.control is None:
        yield (
            "control is not given; without a positive control nothing tells variants that are equal from "
            "a setting that cannot show a difference. Add a variant that is known to differ, such as one "
            "with too high a learning rate, and type: 'control={variant: <variant>, is: lower}', or "
            "'control={grid: <folder of a grid with such a control>}'"
        )


def _starts(grid: Declaration) -> Iterator[str]:
    seeds = len(grid.seeds)
    if grid.expect and grid.starts is None and seeds < FEWEST:
        yield (
            f"seeds has {seeds}, with which nothing in expect can be decided; valid are at "
            f"least {FEWEST}. Type: 'seeds=[1,2,3,4,5,6,7,8]'"
        )
    if grid.starts is not None and not FEWEST <= grid.starts.first <= grid.starts.most <= seeds:
        first, most = grid.starts.first, grid.starts.most
        wanted = max(FEWEST, min(first, seeds))
        yield (
            f"starts is {{first: {first}, most: {most}}} with {seeds} seeds; valid is "
            f"{FEWEST} ≤ first ≤ most ≤ number of seeds. Type: "
            f"'starts={{first: {wanted}, most: {max(wanted, min(most, seeds))}}}'"
            + f" and at least {FEWEST} seeds"
            * (seeds < FEWEST)
        )


def _comparisons(grid: Declaration) -> Iterator[str]:
    for index, (given, each) in enumerate(zip(grid.expect, grid.comparisons, strict=True)):
        key = f"expect[{index}]"
        yield from _variants(grid, key, each)
        if _is_number(given.against):
            if not math.isfinite(given.against):
                valid = "valid is a variant or a finite number. Write against: 1"
                yield f"{key}.against is {given.against}; {valid}"
            if given.minus is not None:
                yield f"{key} has a number in against, and minus, which needs two variants. Remove minus"
            if grid.starts is not None:
                yield (
                    f"{key} compares with a number, and starts is given, whose rule is about differences of "
                    "two variants; valid is a fixed number of seeds. Remove starts"
                )


def _variants(grid: Declaration, key: str, given: Comparison) -> Iterator[str]:
    where = (*zip(("variant", "minus.against"), given.plus, strict=False),)
    where += (*zip(("against", "minus.variant"), given.less, strict=False),)
    for name, variant in where:
        yield from _unknown(grid, f"{key}.{name}", [variant])
    for name in given.plus:
        if name in given.less:
            yield (
                f"{key} compares {name} with itself; valid are different variants, and against is the "
                f"baseline, {grid.base_variant}, unless it is given. Write against: <another variant>"
            )


def _control(grid: Declaration, control: Control) -> Iterator[str]:
    if (control.variant is None) == (control.grid is None):
        has = "neither variant nor grid" if control.grid is None else "both variant and grid"
        yield (
            f"control has {has}; valid is one of them. Type: 'control={{variant: <variant>, is: lower}}', or "
            "'control={grid: <folder of a grid with a control>}'"
        )
    elif grid.own_control is not None:
        yield from _variants(grid, "control", grid.own_control)
        if control.is_ is None:
            yield "control.is is not given; valid are higher, lower, different. Write is: higher"
    elif control.is_ is not None or control.against is not None:
        yield "control has grid, and also is or against, which that grid declares. Remove is and against"


def _unknown(grid: Declaration, key: str, names: list[str]) -> Iterator[str]:
    for name in names:
        if name not in grid.variants:
            yield (
                f"{key} has {name!r}, which is not a variant of the grid; valid are "
                f"{', '.join(grid.variants)}. Write one of them"
            )
