"""What the declared numbers of starts cost and can tell, and a grid that its rule extends once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.table import Table

from grpo_verl_ext.ablation.analysis import all_warnings, analyse, missing_metrics
from grpo_verl_ext.ablation.declaration import FEWEST, Primary, Starts
from grpo_verl_ext.ablation.grid import AblationError, GridSettings
from grpo_verl_ext.ablation.kept import GRID
from grpo_verl_ext.ablation.measures import curves_of, values_of
from grpo_verl_ext.ablation.power import (
    MANY,
    POWER,
    Spread,
    finished_starts,
    first_spread,
    power,
    smallest_difference,
    spread_of,
    starts_by_rule,
    starts_needed,
)
from grpo_verl_ext.ablation.state import STEP_SECONDS
from grpo_verl_ext.ablation.table import Results, read_any, read_results
from grpo_verl_ext.ablation.verdicts import figures
from grpo_verl_ext.utils.console import print_table

_WHERE_FROM = (
    "Type: --pilot <folder or table of a grid that logged it>, or --sd <standard deviation of paired "
    "differences>"
)


def print_power(console: Console, settings: GridSettings, pilot: Path | None, sd: float | None) -> None:
    """Print what the declared numbers of starts cost, and what they can tell; nothing without a comparison.

    The spread is ``sd``, that of the grid ``pilot``, or that of the runs that the grid itself has finished.

    Raises:
        AblationError: the pilot cannot be read or lacks the primary, or pilot and sd do not fit the grid.
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
        console.print(f"The power is unknown: {origin}. {_WHERE_FROM}")
    else:
        console.print(f"SD of paired differences: {figures(sd)} (from {origin})")
        sd *= settings.spread_factor
        if settings.spread_factor > 1:
            console.print(f"SD of differences of differences: {figures(sd)}")
    seconds = [float(pd.concat(own.values()).mean()) for own in curves if own]
    print_table(console, _table(settings, margin, sd, seconds[0] if seconds else None))
    if sd is not None:
        needed, most = starts_needed(margin, sd, settings.level), len(settings.usable)
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


def _table(settings: GridSettings, margin: float, sd: float | None, seconds: float | None) -> Table:
    table, level, rule = Table(title="declared starts"), settings.level, settings.starts
    for name in ("starts", "runs", "minutes", f"power for {margin:g}", f"smallest difference at {POWER:.0%}"):
        table.add_column(name, justify="right")
    for starts in dict.fromkeys((rule.first, rule.most) if rule else (len(settings.seeds),)):
        runs = starts * len(settings.variants)
        minutes = "–" if seconds is None else f"{runs * settings.steps * seconds / 60:.0f}"
        told = ("–", "–")
        if sd is not None and starts >= FEWEST:
            smallest = smallest_difference(sd, starts, level)
            told = (f"{power(margin, sd, starts, level):.2f}", figures(smallest))
        table.add_row(str(starts), str(runs), minutes, *told)
    return table


def declared_starts(settings: GridSettings) -> Starts:
    """The declared numbers of starts.

    Raises:
        AblationError: the grid declares no comparison or no numbers of starts.
    """
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
    """Train ``starts.first`` seeds, then as many as `starts_by_rule` gives, and print the verdicts.

    Args:
        train: trains the runs of these seeds that are not finished; returns whether all are finished then.

    Returns:
        Whether the runs of all these starts are finished and compared, so that the verdicts are final.

    Raises:
        AblationError: a run lacks the primary.
    """
    starts, folder = declared_starts(settings), Path(settings.folder)
    if not train(settings.seeds[: starts.first]):
        console.print(
            f"The first {starts.first} starts are not all finished; then it is decided how many follow."
        )
        return False
    results = read_results(folder)
    spread, count = first_spread(results), starts_by_rule(results)
    if spread is None:
        raise AblationError("; ".join([*missing_metrics(results), *all_warnings(results)]))
    console.print(_decision(settings, starts, spread, count))
    if count > starts.first and not train(settings.seeds[:count]):
        return False
    analysis = analyse(read_results(folder))
    sentences = [each.sentence for each in analysis.verdicts] + [each.sentence for each in analysis.checks]
    for line in (*sentences, *analysis.missing, *analysis.warnings):
        console.print(line)
    return finished_starts(analysis.results, count) == count


def _decision(settings: GridSettings, starts: Starts, spread: Spread, count: int) -> str:
    return (
        f"After {starts.first} starts the SD of paired differences is {figures(spread.sd)} "
        f"({spread.degrees} degrees of freedom): to find {settings.margin:g} with {POWER:.0%}, {count} "
        f"starts are trained, of at most {starts.most}."
    )
