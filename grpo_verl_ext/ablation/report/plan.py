"""What the declared numbers of starts cost and can tell, and a grid that its rule extends once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from rich.console import Console
from rich.table import Table

from grpo_verl_ext.ablation.declaration.comparisons import FEWEST, Declaration, Starts
from grpo_verl_ext.ablation.declaration.grid import AblationError, GridSettings
from grpo_verl_ext.ablation.declaration.kept import GRID
from grpo_verl_ext.ablation.running.results import Results, read_any, read_results
from grpo_verl_ext.ablation.running.state import STEP_SECONDS
from grpo_verl_ext.ablation.statistics.analysis import all_warnings, analyse, missing_metrics
from grpo_verl_ext.ablation.statistics.measures import curves_of, values_of
from grpo_verl_ext.ablation.statistics.pairs import (
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
from grpo_verl_ext.ablation.statistics.verdicts import figures
from grpo_verl_ext.utils.console import print_table

_WHERE_FROM = (
    "Type: --pilot <folder or compact file of a grid that logged it>, or --sd <standard deviation of paired "
    "differences>"
)


@dataclass(frozen=True)
class Sources:
    """Where the spread and the seconds of a step come from."""

    pilot: Path | None = None
    sd: float | None = None


NO_SOURCES = Sources()
"""What the grid itself has finished."""


def print_power(console: Console, settings: GridSettings, sources: Sources) -> None:
    """Print what the declared numbers of starts cost, and what they can tell; nothing without a comparison.

    Raises:
        AblationError: the pilot cannot be read or lacks the primary, or the sources do not fit the grid.
    """
    _check(settings, sources)
    if not settings.expect:
        return
    declared = settings.declaration
    primary, margin = declared.subject
    grids = _grids(settings, sources)
    sd, origin = _sd(declared, sources, grids)
    seconds = next(filter(None, map(_step_seconds, grids.values())), None)
    count = len(settings.expect)
    about = f"{primary.measure.replace('_', ' ')} of {primary.metric}"
    console.print(
        f"{count} comparison{'s' * (count > 1)} of the {about}; "
        f"margin {margin:g}; alpha {declared.alpha:g}, {declared.level:.2g} for each"
    )
    if sd is None:
        console.print(f"The power is unknown: {origin}. {_WHERE_FROM}")
    else:
        console.print(f"SD of paired differences: {figures(sd)} (from {origin})")
        sd *= declared.spread_factor
        if declared.spread_factor > 1:
            console.print(f"SD of differences of differences: {figures(sd)}")
    print_table(console, _table(settings, sd, seconds))
    for line in _needed(declared, sd):
        console.print(line)


def _check(settings: GridSettings, sources: Sources) -> None:
    option = "--pilot" if sources.pilot is not None else "--sd" if sources.sd is not None else None
    if option is not None and not settings.expect:
        raise AblationError(
            f"{option} is given, but the grid declares no comparison, so that no power can be computed. "
            f"Write primary, margin, expect and control into the grid, or leave {option} out"
        )
    if sources.sd is not None and not 0 < sources.sd < math.inf:
        raise AblationError(f"--sd is {sources.sd:g}; valid is a number > 0. Type: --sd 0.04")


def _grids(settings: GridSettings, sources: Sources) -> dict[str, Results]:
    """This grid, if it has begun, and the pilot."""
    folder = Path(settings.folder)
    here = {str(folder): read_results(folder)} if (folder / GRID).is_file() else {}
    return here if sources.pilot is None else {**here, str(sources.pilot): read_any(sources.pilot)[0]}


def _sd(declared: Declaration, sources: Sources, grids: dict[str, Results]) -> tuple[float | None, str]:
    """The standard deviation and where it is from; or None and why it is not known."""
    if sources.sd is not None:
        return sources.sd, "--sd"
    for name, results in reversed(grids.items()):  # the pilot first
        spread = _spread(results, declared)
        if not math.isnan(spread.sd):
            return spread.sd, (
                f"{name}: {', '.join(spread.variants)}; {spread.starts} starts; "
                f"{spread.degrees} degrees of freedom"
            )
        if name == str(sources.pilot):
            raise AblationError(
                f"--pilot is {name}, in which no two variants have finished two common starts that have "
                f"{declared.subject[0].metric}; valid is a grid that logged it to its last step. "
                f"Type another one, or --sd <number>"
            )
    return None, "no two variants of this grid have finished two common starts"


def _spread(results: Results, declared: Declaration) -> Spread:
    """Over the compared variants if two of them have values, else over all that have."""
    primary, _ = declared.subject
    values = values_of(results, primary.metric, primary.measure)
    there = [name for name in results.variants if values[name]]
    compared = [name for name in there if name in declared.compared]
    return spread_of(results, primary, compared if len(compared) > 1 else there, results.settings.seeds)


def _step_seconds(results: Results) -> float | None:
    """Mean seconds of a step over the finished runs."""
    seconds = [value for points in curves_of(results, STEP_SECONDS).values() for _, value in points]
    return fmean(seconds) if seconds else None


def _table(settings: GridSettings, sd: float | None, seconds: float | None) -> Table:
    declared = settings.declaration
    _, margin = declared.subject
    table = Table(title="declared starts")
    for name in ("starts", "runs", "minutes", f"power for {margin:g}", f"smallest difference at {POWER:.0%}"):
        table.add_column(name, justify="right")
    both = (declared.starts.first, declared.starts.most) if declared.starts else (len(declared.seeds),) * 2
    for starts in dict.fromkeys(both):
        runs = starts * len(declared.variants)
        minutes = "–" if seconds is None else f"{runs * settings.steps * seconds / 60:.0f}"
        told = (
            ("–", "–")
            if sd is None or starts < FEWEST
            else (
                f"{power(margin, sd, starts, declared.level):.2f}",
                figures(smallest_difference(sd, starts, declared.level)),
            )
        )
        table.add_row(str(starts), str(runs), minutes, *told)
    return table


def _needed(declared: Declaration, sd: float | None) -> Iterator[str]:
    if sd is None:
        return
    _, margin = declared.subject
    needed = starts_needed(margin, sd, declared.level)
    most = len(declared.usable)
    many = f"{MANY} starts or more" if needed == MANY else f"{needed} starts"
    too_few = "" if needed <= most else f", more than the {most} that the grid may use"
    yield f"A difference of {margin:g} takes {many} to be found with {POWER:.0%}{too_few}."


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
    first, folder = declared_starts(settings).first, Path(settings.folder)
    if not train(settings.seeds[:first]):
        console.print(f"The first {first} starts are not all finished; then it is decided how many follow.")
        return False
    results = read_results(folder)
    spread, count = first_spread(results), starts_by_rule(results)
    if spread is None:
        raise AblationError("; ".join([*missing_metrics(results), *all_warnings(results)]))
    console.print(_decision(settings, spread, count))
    if count > first and not train(settings.seeds[:count]):
        return False
    analysis = analyse(read_results(folder))
    sentences = [each.sentence for each in analysis.verdicts] + [each.sentence for each in analysis.checks]
    for line in (*sentences, *analysis.missing, *analysis.warnings):
        console.print(line)
    return finished_starts(analysis.results, count) == count


def _decision(settings: GridSettings, spread: Spread, count: int) -> str:
    starts, (_, margin) = declared_starts(settings), settings.declaration.subject
    return (
        f"After {starts.first} starts the SD of paired differences is {figures(spread.sd)} "
        f"({spread.degrees} degrees of freedom): to find {margin:g} with {POWER:.0%}, {count} starts are "
        f"trained, of at most {starts.most}."
    )
