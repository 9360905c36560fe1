"""Train the first starts of a grid, extend it once by the declared rule, and print the verdicts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from grpo_verl_ext.ablation.declaration.comparisons import Starts
from grpo_verl_ext.ablation.declaration.grid import AblationError, GridSettings
from grpo_verl_ext.ablation.running.results import read_results
from grpo_verl_ext.ablation.statistics.analysis import analyse, missing_metrics
from grpo_verl_ext.ablation.statistics.extension import first_spread, starts_by_rule
from grpo_verl_ext.ablation.statistics.power import POWER, Spread
from grpo_verl_ext.ablation.statistics.sentences import figures


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
        Whether all runs are finished, so that the verdicts are final.

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
        raise AblationError("; ".join(missing_metrics(results)))
    console.print(_decision(settings, spread, count), markup=False)
    if count > first and not train(settings.seeds[:count]):
        return False
    analysis = analyse(read_results(folder))
    for sentence in [each.sentence for each in analysis.verdicts] + [
        each.sentence for each in analysis.checks
    ]:
        console.print(sentence, markup=False)
    return True


def _decision(settings: GridSettings, spread: Spread, count: int) -> str:
    starts, (_, margin) = declared_starts(settings), settings.declaration.subject
    return (
        f"After {starts.first} starts the SD of paired differences is {figures(spread.sd)} "
        f"({spread.degrees} degrees of freedom): to find {margin:g} with {POWER:.0%}, {count} starts are "
        f"trained, of at most {starts.most}."
    )
