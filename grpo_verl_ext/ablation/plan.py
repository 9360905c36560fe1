"""What the declared numbers of starts cost and can tell, and a grid that its rule extends once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
from rich.console import Console

from grpo_verl_ext.ablation.grid import GRID, AblationError, GridSettings
from grpo_verl_ext.ablation.measures import curves_of, values_of
from grpo_verl_ext.ablation.power import (
    MANY,
    POWER,
    finished_starts,
    first_spread,
    power,
    seeds_by_rule,
    smallest_effect,
    spread_of,
    starts_needed,
)
from grpo_verl_ext.ablation.report import report_of
from grpo_verl_ext.ablation.state import STEP_SECONDS
from grpo_verl_ext.ablation.table import read_any, read_results
from grpo_verl_ext.ablation.verdicts import figures


def print_power(console: Console, settings: GridSettings, pilot: Path | None) -> None:
    """Print what the declared numbers of starts cost, and what they can tell; nothing without a comparison.

    Args:
        pilot: folder or table of a grid, from which spread and seconds are; None: from the grid's own runs.
    """
    primary, margin, level = settings.primary, settings.margin, settings.level
    if primary is None or margin is None or not settings.expect:
        if pilot is not None:
            without = "of which it is the power. Write expect into the grid, or leave --pilot out"
            raise AblationError(f"--pilot is {pilot}, but the grid declares no comparison, {without}")
        return
    source, sd, seconds = pilot or Path(settings.folder), math.nan, math.nan
    said = f"The power is unknown: {source} has no two variants with two common starts that logged the"
    said = f"{said} {primary}. Type: --pilot <folder or table of a grid that has>"
    if pilot is not None or (source / GRID).is_file():
        results, _ = read_any(source)
        timed = curves_of(results, STEP_SECONDS)
        seconds = float(pd.concat(timed.values()).mean()) if timed else math.nan
        values = values_of(results, primary.metric, primary.measure)
        there = [variant for variant in results.variants if values[variant]]
        compared = [variant for variant in there if variant in settings.compared]
        compared = compared if len(compared) > 1 else there
        spread = spread_of(results, primary, compared, results.settings.seeds)
        sd = spread.sd * settings.spread_factor
        if not math.isnan(sd):
            said = f"SD of paired differences: {figures(spread.sd)} (from {source}: {', '.join(compared)}; "
            said += f"{spread.starts} starts; {spread.degrees} degrees of freedom)"
            said += f"; of differences of differences: {figures(sd)}" * (sd > spread.sd)
    number = f"{len(settings.expect)} comparison{'s' * (len(settings.expect) > 1)} of the {primary}"
    console.print(f"{number}; margin {margin:g}; alpha {settings.alpha:g}, {level:.2g} for each\n{said}")
    first, most = settings.starts.first if settings.starts else len(settings.usable), len(settings.usable)
    for starts in dict.fromkeys((first, most)):
        runs = starts * len(settings.variants)
        line = f"{starts} starts: {runs} runs"
        if not math.isnan(seconds):
            line += f", {runs * settings.steps * seconds / 60:.0f} minutes"
        if not math.isnan(sd):
            line += f": power {power(margin, sd, starts, level):.2f} for {margin:g}; smallest difference at "
            line += f"{POWER:.0%}: {figures(smallest_effect(starts, level) * sd)}"
        console.print(line)
    if not math.isnan(sd):
        needed = starts_needed(margin, sd, level)
        more = " or more" * (needed == MANY) + f", of {most} that the grid may use," * (needed > most)
        console.print(f"A difference of {margin:g} takes {needed} starts{more} to be found with {POWER:.0%}.")


def run_until_decided(
    console: Console, settings: GridSettings, train: Callable[[Sequence[int]], bool]
) -> bool:
    """Train ``starts.first`` seeds, then as many as `seeds_by_rule` gives, and print the verdicts.

    Args:
        train: trains the runs of these seeds that are not finished; returns whether all are finished then.

    Returns:
        Whether the runs of all these starts are finished and compared, so that the verdicts are final.
    """
    starts, folder = settings.declared_starts(), Path(settings.folder)
    if not train(settings.seeds[: starts.first]):
        console.print(
            f"The first {starts.first} starts are not all finished; then it is decided how many follow."
        )
        return False
    results = read_results(folder)
    spread, seeds = first_spread(results), seeds_by_rule(results)
    if spread is not None:
        console.print(
            f"After {starts.first} starts the SD of paired differences is {figures(spread.sd)} "
            f"({spread.degrees} degrees of freedom): to find {settings.margin:g} with {POWER:.0%}, "
            f"{len(seeds)} starts are trained, of at most {starts.most}."
        )
    if len(seeds) > starts.first and not train(seeds):
        return False
    report = report_of(read_results(folder))
    sentences = [each.sentence for each in report.verdicts] + [each.sentence for each in report.checks]
    for line in (*sentences, *report.missing, *report.warnings):
        console.print(line)
    return spread is not None and finished_starts(report.results, seeds) == len(seeds)
