"""The power that a number of starts gives a comparison, and the number of starts that a declaration asks for.

``ablate run --until-decided`` extends a grid once by a rule that reads nothing but the finished runs, so that
it gives the same number of starts after a kill.

Of the power, ``alpha`` is the two-sided level of one comparison. Of several under Holm's rule, the one with
the smallest p is tested at the declared level / number of comparisons and the others at more. The power is
that of this first level (`Declaration.level`): it holds for each comparison whatever the others show, and is
understated when others are shown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from grpo_verl_ext.ablation.declaration import FEWEST, Primary
from grpo_verl_ext.ablation.measures import values_of
from grpo_verl_ext.ablation.table import Results

POWER = 0.8
"""Probability with which a difference is to be found."""

MANY = 1000
"""Stands for as many starts or more."""


@dataclass(frozen=True)
class _Spread:
    """Standard deviation of paired differences, and what it was estimated from."""

    sd: float
    """NaN: not known."""
    degrees: int
    """Degrees of freedom."""
    variants: list[str]
    starts: int


def power(difference: float, sd: float, starts: int, alpha: float) -> float:
    """Probability that the two-sided paired t-test finds a true difference with its sign.

    P(T > t_{1−α/2, n−1}), T noncentral t with n − 1 degrees of freedom and noncentrality √n·|difference|/sd.

    Args:
        sd: standard deviation of the paired differences.
    """
    from statsmodels.stats.power import TTestPower

    found = TTestPower().power(abs(difference) / sd, starts, alpha / 2, alternative="larger") if sd else 1.0
    # scipy's noncentral t is NaN for some noncentralities above 38, where this probability rounds to 1.
    return 1.0 if math.isnan(found) else float(found)


def smallest_effect(starts: int, alpha: float) -> float:
    """The difference that the starts find with probability `POWER`, over the standard deviation."""
    from statsmodels.stats.power import TTestPower

    # Two-sided, statsmodels ends at wrong values for few starts, where the other tail of scipy's t is NaN.
    return float(TTestPower().solve_power(nobs=starts, alpha=alpha / 2, power=POWER, alternative="larger"))


def starts_needed(difference: float, sd: float, alpha: float) -> int:
    """The fewest starts, `FEWEST` to `MANY`, that find the difference with probability `POWER`."""
    from statsmodels.stats.power import TTestPower

    if power(difference, sd, FEWEST, alpha) >= POWER:
        return FEWEST
    if power(difference, sd, MANY, alpha) < POWER:
        return MANY
    effect = abs(difference) / sd
    starts = TTestPower().solve_power(effect, alpha=alpha / 2, power=POWER, alternative="larger")
    return math.ceil(float(starts))


def extended_starts(margin: float, sd: float, alpha: float, *, first: int, most: int) -> int:
    """The number of starts to end with: those that ``margin`` takes, from ``first`` to ``most``.

    ``sd`` is that of the first starts, blind to the means of the differences; NaN, not known, takes ``most``.
    """
    return most if math.isnan(sd) else min(max(first, starts_needed(margin, sd, alpha)), most)


def difference_sd(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Standard deviation of paired differences: the root mean square of those of all pairs of variants.

    It assumes that all variants scatter alike around their start.

    Args:
        values: ``(…, k, n)``, k ≥ 2 variants with the same n ≥ 2 starts.

    Returns:
        ``(…)``.
    """
    pairs = combinations(range(values.shape[-2]), 2)
    variances = [(values[..., i, :] - values[..., j, :]).var(axis=-1, ddof=1) for i, j in pairs]
    return np.asarray(np.sqrt(np.mean(variances, axis=0)))


def spread_of(results: Results, primary: Primary, variants: Sequence[str], seeds: Sequence[int]) -> _Spread:
    """Standard deviation of paired differences of the primary, over the seeds that all variants have.

    It is NaN with fewer than two variants or two such seeds; a seed with a NaN is left out.
    """
    every = values_of(results, primary.metric, primary.measure)
    values = [every[name] for name in variants]
    common = [seed for seed in seeds if all(math.isfinite(each.get(seed, math.nan)) for each in values)]
    degrees = max(0, len(values) - 1) * max(0, len(common) - 1)
    shared = np.array([[each[seed] for seed in common] for each in values])
    return _Spread(float(difference_sd(shared)) if degrees else math.nan, degrees, [*variants], len(common))


def first_spread(results: Results) -> _Spread | None:
    """The spread over the declared first starts; None until all compared variants have finished them."""
    declared = results.settings
    primary = declared.primary
    if declared.starts is None or primary is None or not declared.expect:
        return None
    first = declared.seeds[: declared.starts.first]
    values = values_of(results, primary.metric, primary.measure)
    if any(seed not in values[name] for name in declared.compared for seed in first):
        return None
    return spread_of(results, primary, declared.compared, first)


def seeds_by_rule(results: Results) -> list[int]:
    """The seeds of the starts that the declaration asks for: verdicts use no others, even finished ones.

    ``starts.first`` of them until these are finished; then what ``margin`` takes at 80 %, at most
    ``starts.most``. Without ``starts``, all.
    """
    declared = results.settings
    if declared.starts is None:
        return declared.seeds
    spread, count, most = first_spread(results), declared.starts.first, declared.starts.most
    if spread is not None and declared.margin is not None:
        sd = spread.sd * declared.spread_factor
        count = extended_starts(declared.margin, sd, declared.level, first=count, most=most)
    return declared.seeds[:count]


def finished_starts(results: Results, seeds: Sequence[int]) -> int:
    """How many of these starts the compared variants have all finished."""
    finished = [results.seeds_of(name) for name in results.settings.compared]
    return sum(all(seed in each for each in finished) for seed in seeds)
