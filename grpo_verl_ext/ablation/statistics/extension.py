"""The rule by which ``ablate run --until-decided`` extends a grid once, and the spread that it depends on.

The rule reads nothing but the finished runs, so that it gives the same number of starts after a kill.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from grpo_verl_ext.ablation.declaration.comparisons import Primary
from grpo_verl_ext.ablation.running.results import Results
from grpo_verl_ext.ablation.statistics.power import Spread, difference_sd, extended_starts


def spread_of(results: Results, primary: Primary, variants: Sequence[str], seeds: Sequence[int]) -> Spread:
    """Standard deviation of paired differences of the primary, over the seeds that all variants have.

    It is NaN with fewer than two variants or two such seeds; a seed with a NaN is left out.
    """
    values = [results.values(name, primary.metric, primary.measure) for name in variants]
    common = [seed for seed in seeds if all(math.isfinite(each.get(seed, math.nan)) for each in values)]
    if len(values) < 2 or len(common) < 2:
        return Spread(math.nan, 0, list(variants), len(common))
    sd = float(difference_sd(np.array([[each[seed] for seed in common] for each in values])))
    return Spread(sd, (len(values) - 1) * (len(common) - 1), list(variants), len(common))


def first_spread(results: Results) -> Spread | None:
    """The spread over the declared first starts; None until all compared variants have finished them."""
    declared = results.settings.declaration
    if declared.starts is None or not declared.expect:
        return None
    primary, _ = declared.subject
    first = declared.seeds[: declared.starts.first]
    values = [results.values(name, primary.metric, primary.measure) for name in declared.compared]
    if any(seed not in each for each in values for seed in first):
        return None
    return spread_of(results, primary, declared.compared, first)


def starts_by_rule(results: Results) -> int:
    """The number of starts that the declaration asks for, by the runs that are finished.

    ``starts.first`` until these are finished; then what ``margin`` takes at 80 %, at most ``starts.most``.
    Without ``starts``, all seeds.
    """
    declared = results.settings.declaration
    if declared.starts is None:
        return len(declared.seeds)
    spread = first_spread(results)
    if spread is None:
        return declared.starts.first
    _, margin = declared.subject
    first, most = declared.starts.first, declared.starts.most
    sd = spread.sd * declared.spread_factor
    return extended_starts(margin, sd, declared.level, first=first, most=most)


def finished_starts(results: Results, count: int) -> int:
    """How many of the first ``count`` starts the compared variants have all finished."""
    declared = results.settings.declaration
    finished = [{run.seed for run in results.finished(name)} for name in declared.compared]
    return sum(all(seed in each for each in finished) for seed in declared.seeds[:count])
