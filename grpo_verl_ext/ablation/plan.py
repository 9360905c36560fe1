"""What the declared numbers of starts cost and can tell, and a grid that its rule extends once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
from rich.console import Console

from grpo_verl_ext.ablation.declaration import FEWEST, Primary, Starts
from grpo_verl_ext.ablation.grid import AblationError, GridSettings
from grpo_verl_ext.ablation.kept import GRID
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
from grpo_verl_ext.ablation.table import Results, read_any, read_results
from grpo_verl_ext.ablation.verdicts import figures


def print_power(console: Console, settings: GridSettings, pilot: Path | None, sd: float | None) -> None:
    """Print what the declared numbers of starts cost, and what they can tell; nothing without a comparison.

    The spread is ``sd``, that of the grid ``pilot``, or that of the runs that the grid itself has finished.
    """
    option = "--pilot" if pilot is not None else "--sd" if sd is not None else None
    if option is not None and not settings.expect:
        raise AblationError(
            f"{option} is given, but the grid declares no comparison, so that no power can be computed. "
            f"Write primary, margin, expect and control into the grid, or leave {option} out"
        )
    if sd is not None and not 0 < sd < math.inf:
        raise AblationError(f"--sd is {sd:g}; valid is a number > 0. Type: --sd 0.04")
    primary, margin, count = settings.primary, settings.margin, len(settings.expect)
    if primary is None or margin is None or not count:
        return
    folder = Path(settings.folder)
    grids = {str(folder): read_results(folder)} if (folder / GRID).is_file() else {}
    grids |= {} if pilot is None else {str(pilot): read_any(pilot)[0]}
    curves = [curves_of(grid, STEP_SECONDS) for grid in grids.values()]
    origin = "--sd"
    if sd is None:
        sd, origin = _sd(settings, primary, pilot, grids)
    console.print(
        f"{count} comparison{'s' * (count > 1)} of the {primary}; "
        f"margin {margin:g}; alpha {settings.alpha:g}, {settings.level:.2g} for each"
    )
    if sd is None:
        console.print(
            f"The power is unknown: {origin}. Type: --pilot <folder or table of a grid that logged it>, or "
            f"--sd <standard deviation of paired differences>"
        )
    else:
        console.print(f"SD of paired differences: {figures(sd)} (from {origin})")
        sd *= settings.spread_factor
        if settings.spread_factor > 1:
            console.print(f"SD of differences of differences: {figures(sd)}")
    measured = [float(pd.concat(own.values()).mean()) for own in curves if own]
    _print_starts(console, settings, margin, sd, measured[0] if measured else None)


def _print_starts(
    console: Console, settings: GridSettings, margin: float, sd: float | None, seconds: float | None
) -> None:
    rule, level = settings.starts, settings.level
    for starts in dict.fromkeys((rule.first, rule.most) if rule else (len(settings.seeds),)):
        runs = starts * len(settings.variants)
        cost = f", {runs * settings.steps * seconds / 60:.0f} minutes" if seconds else ""
        told = ""
        if sd is not None and starts >= FEWEST:
            smallest = figures(smallest_effect(starts, level) * sd)
            found = f"{power(margin, sd, starts, level):.2f}"
            told = f": power {found} for {margin:g}; smallest difference at {POWER:.0%}: {smallest}"
        console.print(f"{starts} starts: {runs} runs{cost}{told}")
    if sd is not None:
        needed, most = starts_needed(margin, sd, level), len(settings.usable)
        many = f"{MANY} starts or more" if needed == MANY else f"{needed} starts"
        too_few = "" if needed <= most else f", more than the {most} that the grid may use"
        console.print(f"A difference of {margin:g} takes {many} to be found with {POWER:.0%}{too_few}.")


def _sd(
    settings: GridSettings, primary: Primary, pilot: Path | None, grids: dict[str, Results]
) -> tuple[float | None, str]:
    """The standard deviation and where it is from; or None and why it is not known."""
    for name, results in reversed(grids.items()):  # the pilot first
        values = values_of(results, primary.metric, primary.measure)
        there = [variant for variant in results.variants if values[variant]]
        compared = [variant for variant in there if variant in settings.compared]
        chosen = compared if len(compared) > 1 else there
        spread = spread_of(results, primary, chosen, results.settings.seeds)
        if not math.isnan(spread.sd):
            return spread.sd, (
                f"{name}: {', '.join(spread.variants)}; {spread.starts} starts; "
                f"{spread.degrees} degrees of freedom"
            )
        if name == str(pilot):
            raise AblationError(
                f"--pilot is {name}, in which no two variants have finished two common starts that have "
                f"{primary.metric}; valid is a grid that logged it to its last step. "
                f"Type another one, or --sd <number>"
            )
    return None, "no two variants of this grid have finished two common starts"


def declared_starts(settings: GridSettings) -> Starts:
    """The declared numbers of starts, or an error if there are none, or no comparison."""
    if not settings.expect:
        raise AblationError(
            "--until-decided is given, but the grid declares no comparison, so that nothing can be decided. "
            "Write primary, margin, starts, expect and control into the grid, or leave --until-decided out"
        )
    if settings.starts is None:
        raise AblationError(
            "--until-decided is given without starts; valid are the first and the largest number of starts. "
            "Type: 'starts={first: 8, most: 16}'"
        )
    return settings.starts


def run_until_decided(
    console: Console, settings: GridSettings, train: Callable[[Sequence[int]], bool]
) -> bool:
    """Train ``starts.first`` seeds, then as many as `seeds_by_rule` gives, and print the verdicts.

    Args:
        train: trains the runs of these seeds that are not finished; returns whether all are finished then.

    Returns:
        Whether the runs of all these starts are finished and compared, so that the verdicts are final.
    """
    starts, folder = declared_starts(settings), Path(settings.folder)
    if not train(settings.seeds[: starts.first]):
        console.print(
            f"The first {starts.first} starts are not all finished; then it is decided how many follow."
        )
        return False
    results = read_results(folder)
    spread, seeds = first_spread(results), seeds_by_rule(results)
    if spread is None:
        report = report_of(results)
        raise AblationError("; ".join([*report.missing, *report.warnings]))
    console.print(
        f"After {starts.first} starts the SD of paired differences is {figures(spread.sd)} "
        f"({spread.degrees} degrees of freedom): to find {settings.margin:g} with {POWER:.0%}, {len(seeds)} "
        f"starts are trained, of at most {starts.most}."
    )
    if len(seeds) > starts.first and not train(seeds):
        return False
    report = report_of(read_results(folder))
    sentences = [each.sentence for each in report.verdicts] + [each.sentence for each in report.checks]
    for line in (*sentences, *report.missing, *report.warnings):
        console.print(line)
    return finished_starts(report.results, seeds) == len(seeds)
