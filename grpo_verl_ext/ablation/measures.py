"""Numbers of curves, differences of variants paired by seed with intervals and tests, and their power.

Of the power, ``alpha`` is the two-sided level of one comparison. Of several under Holm's rule, the one with
the smallest p is tested at the declared level / number of comparisons, `GridSettings.level`, and the others
at more: the power holds for each whatever the others show, and is understated when others are shown.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import integrate, special, stats

from grpo_verl_ext.ablation.declaration import FEWEST

CONFIDENCE = 0.95
POWER = 0.8  # probability with which a difference is to be found
MANY = 1000  # stands for as many starts or more


def measured(curve: "pd.Series[float]") -> dict[str, float]:
    """Numbers of a curve that can be compared between variants.

    ``area`` is that under the curve by trapezoids, divided by its width; ``second_half`` is the mean over the
    steps after half of the last one. On a noisy curve ``best`` overstates what was reached.
    """
    last, width = curve.index[-1], curve.index[-1] - curve.index[0]
    found = {
        "final": curve.iloc[-1],
        "best": curve.max(),
        "area": integrate.trapezoid(curve, curve.index) / width if width else curve.iloc[-1],
        "mean": curve.mean(skipna=False),
        "second_half": curve.loc[min(last // 2 + 1, last) :].mean(skipna=False),
    }
    return {name: float(value) for name, value in found.items()}


def interval(values: NDArray[np.float64], level: float) -> tuple[NDArray[np.float64], ...]:
    """Mean, standard deviation (n − 1) and mean ± t_{(1+level)/2, n−1} · std / √n.

    Of ``values``, ``(…, n)``, each is ``(…)``; all but the mean are NaN for n = 1.
    """
    count, mean = values.shape[-1], values.mean(axis=-1)
    std = values.std(axis=-1, ddof=1) if count > 1 else np.full_like(mean, math.nan)
    half = special.stdtrit(count - 1, (1 + level) / 2) * std / math.sqrt(count)
    return mean, std, mean - half, mean + half


@dataclass(frozen=True, kw_only=True)
class Paired:
    """A variant minus another over their common seeds; None where the seeds are too few or do not differ."""

    by_seed: dict[int, float]
    difference: float | None = None
    """Mean of ``by_seed``."""
    low: float | None = None
    high: float | None = None
    """Interval of the mean difference: Student's t on the differences."""
    p: float | None = None
    """Two-sided paired t-test."""


def paired(terms: Mapping[int, Sequence[float]], level: float, fewest: int = 2) -> Paired:
    """Test the sums of each seed's terms, unless they scatter by rounding alone, 1e-12 of the largest."""
    by_seed = {seed: sum(each) for seed, each in terms.items()}
    values = np.array([*by_seed.values()])
    if not by_seed or not np.isfinite(values).all():
        return Paired(by_seed=by_seed)
    mean, std, low, high = map(float, interval(values, level))
    scatter = std > 1e-12 * max(abs(term) for each in terms.values() for term in each)
    if len(by_seed) < fewest or not scatter:
        return Paired(by_seed=by_seed, difference=mean)
    p = float(stats.ttest_1samp(values, 0.0).pvalue)
    return Paired(by_seed=by_seed, difference=mean, low=low, high=high, p=p)


def compare(variant: Mapping[int, float], baseline: Mapping[int, float]) -> Paired | None:
    """Compare two variants, each seed → value, paired by seed; None without a common seed."""
    seeds = sorted(variant.keys() & baseline.keys())
    return paired({seed: (variant[seed], -baseline[seed]) for seed in seeds}, CONFIDENCE) if seeds else None


def p_of_equality(differences: NDArray[np.float64], margin: float) -> NDArray[np.float64]:
    """The larger p of two one-sided tests for the differences of pairs, ``(…, n)``, being within ±margin."""
    above = stats.ttest_1samp(differences, -margin, axis=-1, alternative="greater").pvalue
    below = stats.ttest_1samp(differences, margin, axis=-1, alternative="less").pvalue
    return np.asarray(np.maximum(above, below))


def holm(p_values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Adjust p-values by Holm's rule; NaN, a comparison that was not tested, counts as 1 and stays NaN.

    The k-th smallest of n is multiplied by n − k + 1, and is at least the one before it and at most 1.
    """
    order, adjusted = np.argsort(p_values), np.empty_like(p_values)  # NaN comes last
    of_rest = np.nan_to_num(p_values[order], nan=1.0) * np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(np.maximum.accumulate(of_rest), 1.0)
    return np.where(np.isnan(p_values), np.nan, adjusted)


def power(difference: float, sd: float, starts: int, alpha: float) -> float:
    """Probability that the two-sided paired t-test finds a true difference with its sign.

    P(T > t_{1−α/2, n−1}), T noncentral t with n − 1 degrees of freedom and noncentrality √n·|difference|/sd.
    ``sd`` is the standard deviation of the paired differences.
    """
    if sd == 0:
        return 1.0
    critical, noncentrality = stats.t.isf(alpha / 2, starts - 1), math.sqrt(starts) * abs(difference) / sd
    found = float(stats.nct.sf(critical, starts - 1, noncentrality))
    # scipy's noncentral t is NaN for some noncentralities above 38, where this probability rounds to 1
    return 1.0 if math.isnan(found) else found


def starts_needed(difference: float, sd: float, alpha: float, first: int = FEWEST, most: int = MANY) -> int:
    """The fewest starts, ``first`` to ``most``, that find the difference with probability `POWER`.

    An ``sd`` of NaN, not known, takes ``most``.
    """
    candidates = () if math.isnan(sd) else range(first, most)
    return next((starts for starts in candidates if power(difference, sd, starts, alpha) >= POWER), most)


def difference_sd(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Standard deviation of paired differences: the root mean square of those of all pairs of variants.

    It assumes that all variants scatter alike around their start. Of ``values``, ``(…, k, n)`` with k ≥ 2
    variants that have the same n ≥ 2 starts, it is ``(…)``.
    """
    pairs = combinations(range(values.shape[-2]), 2)
    variances = [(values[..., i, :] - values[..., j, :]).var(axis=-1, ddof=1) for i, j in pairs]
    return np.asarray(np.sqrt(np.mean(variances, axis=0)))
