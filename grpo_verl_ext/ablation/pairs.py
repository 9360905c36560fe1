"""Differences of two variants paired by seed, and their tests."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from scipy import stats

from grpo_verl_ext.ablation.declaration import FEWEST, Comparison, Primary
from grpo_verl_ext.ablation.results import Results
from grpo_verl_ext.ablation.statistics import NO_SPREAD
from grpo_verl_ext.ablation.verdicts import paired_tests


@dataclass(frozen=True)
class Pairs:
    """A variant minus another over their common starts; sd and p-values are NaN where nothing is tested."""

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
    """Pair and test the primary of two variants over the declared starts that both have finished."""
    variant, against = (
        results.values(name, primary.metric, primary.measure)
        for name in (comparison.variant, comparison.against)
    )
    common = [seed for seed in results.settings.declaration.usable if seed in variant and seed in against]
    by_seed = {seed: variant[seed] - against[seed] for seed in common}
    unknown = [str(seed) for seed in common if not math.isfinite(by_seed[seed])]
    if unknown:
        return Pairs(by_seed, None, why=f"a value is NaN with seed {', '.join(unknown)}")
    difference = fmean(by_seed.values()) if by_seed else None
    if len(common) < FEWEST:
        return Pairs(by_seed, difference, why=f"fewer than {FEWEST} starts are finished by both")
    differences = np.array([*by_seed.values()])
    largest = max(abs(values[seed]) for seed in common for values in (variant, against))
    if differences.std() <= NO_SPREAD * largest:
        return Pairs(by_seed, difference, why="the difference is the same with every seed")
    tests = paired_tests(differences, margin)
    return Pairs(by_seed, difference, float(tests.sd), float(tests.p), float(tests.p_equal))
