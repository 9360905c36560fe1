"""The keys of a grid file, and what it claims before its first run: comparisons, margin, checks, control."""

import math
from collections import Counter
from dataclasses import dataclass, field
from itertools import product
from typing import Annotated, Any, Literal

from pydantic import Field

from grpo_verl_ext.utils.documents import Document

Measure = Literal["final", "area", "mean", "second_half"]
"""Numbers of a curve that can be declared; `best` is left out, since it overstates a noisy curve."""

FEWEST = 3  # fewer common starts are never decided
IN_WORDS = {"final": "last value", "area": "mean over steps", "second_half": "mean over the second half"}
"""Measures in sentences, where their names do not say it."""


@dataclass
class Primary:
    """The number that the comparisons are about: a measure of a metric of verl."""

    metric: str
    measure: Measure

    def __str__(self) -> str:
        return f"{IN_WORDS.get(self.measure, 'mean')} of {self.metric}"


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


@dataclass
class Control:
    """A positive control: a known difference between two variants of this grid, or that of another grid."""

    variant: str | None = None
    is_: Literal["higher", "lower", "different"] | None = None
    against: str | None = None
    """The variant that it is compared with; None: the baseline."""
    grid: str | None = None
    """Instead: folder or table of a grid whose own control must be shown."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A variant minus another or minus a number, or a difference of two such differences."""

    name: str
    """``gvpo − grpo, mean over steps of acc``."""
    of: str = ""
    """``mean over steps of acc``."""
    variant: str
    """What comes first: a variant, or ``(a − b)``."""
    against: str
    """What is taken from it: a variant, a number, or ``(c − d)``."""
    measure: Measure
    expected: str  # higher, lower, different or equal
    weights: dict[str, int]
    """Variant → how often its number is added; negative: taken away; 0: it is compared with itself."""
    number: float | None = None
    """Taken away as well; the rest is expected to be higher or lower than 0."""


@dataclass(kw_only=True)
class GridSettings(Document):
    """The keys of a grid file, and what follows from them."""

    axes: Annotated[dict[str, Annotated[dict[str, list[str]], Field(min_length=1)]], Field(min_length=1)]
    """Axis → label → overrides. Axes are crossed; overrides that belong together share a label."""
    seeds: Annotated[list[Annotated[int, Field(ge=0, lt=2**63)]], Field(min_length=1)]
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
    control: Control | None = None
    folder: Annotated[str, Field(exclude=True)] = ""
    """Folder of the results, with a folder per run; it may be moved, and no file in it says where it was."""
    steps: Annotated[int, Field(ge=1)]
    """Training steps of every run."""
    base: list[str]
    """verl overrides that all runs share."""
    seed_overrides: list[str] = field(
        default_factory=lambda: ["data.seed={seed}", "++actor_rollout_ref.rollout.seed={seed}"]
    )
    """Overrides that depend on the seed, the same for all variants, so that runs are paired by seed."""
    metrics: Annotated[list[str], Field(min_length=1)]
    """Names of verl's metrics to compare, the most important first."""

    def __post_init__(self) -> None:
        self.is_declared = bool(self.expect) or self.control is not None
        """Whether the grid claims something; otherwise it is exploratory."""
        self.overrides: dict[str, list[str]] = {}
        """Name of each variant, its labels joined → its own overrides."""
        for choices in product(*(axis.items() for axis in self.axes.values())):
            name = "-".join(label for label, _ in choices)
            self.overrides[name] = [each for _, own in choices for each in own]
        self.base_variant = "-".join(self.baseline)
        self.usable = self.seeds[: self.starts.most if self.starts else None]
        """The seeds that verdicts may use."""
        self.level = self.alpha / max(1, len(self.expect))
        """The two-sided level of one comparison: alpha / number of comparisons, without Holm's gain."""
        self.shown = self.primary or Primary(self.metrics[0], "area")
        """The number whose differences a report shows: the primary, else the area of the first metric."""
        self.comparisons = [self._comparison(each) for each in self.expect]
        self.compared = list(dict.fromkeys(name for each in self.comparisons for name in each.weights))
        """Variants that take part in a comparison."""
        squares = [sum(times**2 for times in each.weights.values()) for each in self.comparisons]
        self.spread_factor = math.sqrt(max([2, *squares]) / 2)
        """The largest standard deviation of a comparison, over that of a difference of two variants."""
        self.own_control: Comparison | None = None
        """The control as a comparison of this grid; None: it is another grid's, or there is none."""
        if (own := self.control) is not None and own.variant is not None:
            given = Expectation(own.variant, own.is_ or "different", own.against)
            self.own_control = self._comparison(given)

    def _comparison(self, given: Expectation) -> Comparison:
        first, against = given.variant, self.base_variant if given.against is None else str(given.against)
        weights, number = Counter([first]), None
        if type(given.against) in (int, float):
            against, number = f"{given.against:g}", float(given.against)
        else:
            weights.subtract([against])
        if (other := given.minus) is not None:
            weights.update([other.against])
            weights.subtract([other.variant])
            first, against = f"({first} − {against})", f"({other.variant} − {other.against})"
        of = Primary(self.shown.metric, given.measure or self.shown.measure)
        named = {"name": f"{first} − {against}, {of}", "of": f"{of}", "variant": first, "against": against}
        return Comparison(**named, measure=of.measure, expected=given.is_, weights=weights, number=number)
