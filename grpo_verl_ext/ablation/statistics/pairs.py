"""Differences of variants paired by seed, and their tests."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from scipy import stats

from grpo_verl_ext.ablation.declaration.comparisons import FEWEST, Comparison, Primary
from grpo_verl_ext.ablation.running.results import Results
from grpo_verl_ext.ablation.statistics.measures import NO_SPREAD
from grpo_verl_ext.ablation.statistics.verdicts import paired_tests


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
        """mean ± t_{1−α/2, n−1} · sd / √n; None where nothing is tested."""
        if self.difference is None or math.isnan(self.sd):
            return None
        half = float(stats.t.isf(alpha / 2, self.starts - 1)) * self.sd / math.sqrt(self.starts)
        return self.difference - half, self.difference + half


def pairs_of(results: Results, comparison: Comparison, primary: Primary, margin: float) -> Pairs:
    """Pair and test the primary of a comparison over the declared starts that its variants have finished."""
    values = {name: results.values(name, primary.metric, primary.measure) for name in comparison.variants}
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
        return Pairs(
            by_seed,
            difference,
            why=f"fewer than {FEWEST} starts are finished by {'both' if len(values) == 2 else 'all'}",
        )
    differences = np.array([*by_seed.values()])
    largest = max(abs(each[seed]) for seed in common for each in values.values())
    if differences.std() <= NO_SPREAD * largest:
        return Pairs(by_seed, difference, why="the difference is the same with every seed")
    tests = paired_tests(differences, margin)
    return Pairs(by_seed, difference, float(tests.sd), float(tests.p), float(tests.p_equal))
