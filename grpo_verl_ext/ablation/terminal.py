"""``grpo-verl-ext ablate`` on the terminal: the runs, what they cost and can tell, and the comparison."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean

import pandas as pd
from omegaconf import DictConfig
from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text
from scipy.optimize import brentq

from grpo_verl_ext.ablation.declaration import GridSettings, Starts
from grpo_verl_ext.ablation.grid import GRID, AblationError, GridRun, RunStatus, check_unchanged, runs_of
from grpo_verl_ext.ablation.measures import MANY, POWER, power, starts_needed
from grpo_verl_ext.ablation.report import COLOURS, Report, write_files, write_page
from grpo_verl_ext.ablation.results import STEP_SECONDS, TABLE, read_results, write_table
from grpo_verl_ext.ablation.run import check_records, check_runs, compose_runs, go
from grpo_verl_ext.ablation.verdicts import control_of, figures
from grpo_verl_ext.utils.console import make_console


def print_plan(settings: GridSettings, *, command: str, pilot: Path | None) -> None:
    """Compose and list all runs, with the ``command`` that starts them and what a declaration can tell."""
    console, runs = make_console(), runs_of(settings)
    _compose(console, settings, runs)
    statuses = _print_runs(console, runs, settings.metrics[0])
    left = [status for status in statuses if status.is_to_do]
    logged = [each for status in statuses for each in status.metrics.values()]
    seconds = [each[STEP_SECONDS] for each in logged if STEP_SECONDS in each]
    steps = sum(settings.steps - max(status.metrics, default=0) for status in left)
    known = f"about {steps * mean(seconds) / 60:.0f} min of steps" if seconds else ""
    time = known or "time unknown before the first step"
    console.print(f"{len(left)} of {len(runs)} runs to do, {time}. To start them: {command}")
    _print_power(console, settings, pilot)


def run_grid(settings: GridSettings, *, ray_address: str | None, jobs: int, until_decided: bool) -> bool:
    """Check all runs, train those that are to do, and return whether all that are asked for are finished."""
    console, cluster, starts = make_console(), None, settings.starts if until_decided else None
    if until_decided and starts is None:
        needs = "valid with expect and starts. Type: 'starts={first: 8, most: 16}', or leave it out"
        raise AblationError(f"--until-decided is given without starts; it is {needs}")
    if ray_address is not None:
        from grpo_verl_ext.ablation.ray_jobs import connected

        cluster = connected(ray_address.rstrip("/"), jobs, console.print)
    elif jobs > 1:
        valid = "valid is 1, for each run has the machine to itself. Type: --ray-address http://HOST:8265"
        raise AblationError(f"--jobs is {jobs}; without a cluster {valid}")
    runs = [run for run in runs_of(settings) if run.seed in settings.seeds[: starts.most if starts else None]]
    configs = _compose(console, settings, runs)
    check_runs(configs, here=cluster is None)
    for line in dict.fromkeys(run.training.ray.words for run in runs if cluster is None):
        console.print(line)

    def train(seeds: Sequence[int]) -> bool:
        chosen = [run for run in runs if run.seed in seeds]
        with Live(console=console, refresh_per_second=2, transient=True) as live:
            go(settings, chosen, live, cluster=cluster, configs=configs)
        statuses = _print_runs(console, chosen, settings.metrics[0])
        return all(status.state == "finished" for status in statuses)

    finished = train(settings.seeds) if starts is None else _until_decided(console, settings, starts, train)
    console.print(f"To compare the runs: grpo-verl-ext ablate report {settings.folder}")
    return finished


def _compose(console: Console, settings: GridSettings, runs: Sequence[GridRun]) -> dict[str, DictConfig]:
    """Compose the runs, refuse what differs from what was begun, and say where the control is missed."""
    configs = compose_runs(runs)
    check_records(runs)
    check_unchanged(settings)
    if (control := control_of(settings)) is not None and not control.passed:
        fix = "grpo-verl-ext ablate run <file of that grid>"
        console.print(f"{control.sentence}. Without it every verdict is blind. Type: {fix}", style="red")
    return configs


def _print_power(console: Console, settings: GridSettings, pilot: Path | None) -> None:
    """Print what the declared numbers of seeds cost and can tell, by the pilot's runs or else its own."""
    primary, margin, level = settings.primary, settings.margin, settings.level
    if primary is None or margin is None or not settings.expect:
        if pilot is not None:
            why = "but the grid declares no comparison. Write expect into it, or leave --pilot out"
            raise AblationError(f"--pilot is {pilot}, {why}")
        return
    source, sd, seconds = pilot or Path(settings.folder), math.nan, math.nan
    said = f"The power is unknown: {source} has no two variants with two common seeds of the {primary}. "
    said += "Type: --pilot <folder or table of a grid that has>"
    if pilot is not None or (source / GRID).is_file():
        results = read_results(source)
        results.measure(primary.metric)
        if timed := results.curves[STEP_SECONDS]:
            seconds = float(pd.concat(timed.values()).mean())
        there = [name for name, values in results.values[primary.metric, primary.measure].items() if values]
        compared = [variant for variant in there if variant in settings.compared]
        compared = compared if len(compared) > 1 else there
        pairs, degrees, common = results.spread(primary, compared, results.settings.seeds)
        sd = pairs * settings.spread_factor
        if not math.isnan(sd):
            said = f"SD of paired differences: {figures(pairs)} (from {source}: {', '.join(compared)}; "
            said += f"{common} seeds; {degrees} degrees of freedom)"
            said += f"; of differences of differences: {figures(sd)}" * (sd > pairs)
    count = f"{len(settings.expect)} comparison{'s' * (len(settings.expect) > 1)} of the {primary}"
    console.print(f"{count}; margin {margin:g}; alpha {settings.alpha:g}, {level:.2g} for each\n{said}")
    first, most = settings.starts.first if settings.starts else len(settings.usable), len(settings.usable)
    for starts in dict.fromkeys((first, most)):
        runs = starts * len(settings.overrides)
        line = f"{starts} seeds: {runs} runs"
        if not math.isnan(seconds):
            line += f", {runs * settings.steps * seconds / 60:.0f} minutes"
        if not math.isnan(sd):
            effect = brentq(lambda each: power(each, 1.0, starts, level) - POWER, 0.0, 1e3)  # noqa: B023
            line += f": power {power(margin, sd, starts, level):.2f} for {margin:g}; smallest difference at "
            line += f"{POWER:.0%}: {figures(effect * sd)}"
        console.print(line)
    if not math.isnan(sd):
        needed = starts_needed(margin, sd, level)
        more = " or more" * (needed == MANY) + f", of {most} that the grid may use," * (needed > most)
        console.print(f"A difference of {margin:g} takes {needed} seeds{more} to be found with {POWER:.0%}.")


def _until_decided(
    console: Console, settings: GridSettings, starts: Starts, train: Callable[[Sequence[int]], bool]
) -> bool:
    """Train ``starts.first`` seeds, then all of `Results.seeds`; say whether they are compared."""
    first = starts.first
    if not train(settings.seeds[:first]):
        console.print(f"The first {first} seeds are not all finished; how many follow is decided then.")
        return False
    results = read_results(Path(settings.folder))
    spread, seeds = results.first_spread, results.seeds
    if spread is not None:
        found = f"{figures(spread[0])} ({spread[1]} degrees of freedom)"
        needs = f"to find {settings.margin:g} with {POWER:.0%}, {len(seeds)} seeds are trained"
        said = f"After {first} seeds the SD of paired differences is {found}: {needs}"
        console.print(f"{said}, of at most {starts.most}.")
    if len(seeds) > first and not train(seeds):
        return False
    report = Report(read_results(Path(settings.folder)))
    sentences = [*(each.sentence for each in report.verdicts), *(each.sentence for each in report.checks)]
    for line in (*sentences, *report.missing, *report.warnings):
        console.print(line)
    return spread is not None and {*seeds} <= report.results.finished


def print_report(source: Path, *, output: Path | None = None) -> None:
    """Compare the finished runs of a grid's folder or table, on the terminal and in files beside it."""
    report, console = Report(read_results(source)), make_console(at_least=120)  # a row of numbers is a line
    for line in report.missing:
        console.print(line, style="red")
    for label, sentence in report.statements:
        console.print(Text.assemble((f"{label}:", f"bold white on {COLOURS[label]}"), f" {sentence}"))
    console.print("\n".join([*report.exploratory, ""]))
    for title, columns, lines in report.tables:
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for name in columns:
            table.add_column(name, justify="left" if name in ("check", "variant") else "right")
        for cells in lines:
            table.add_row(*cells)
        console.print(table)  # it ends with a blank line
    folder = output or (source.parent if source.is_file() else source)
    folder.mkdir(parents=True, exist_ok=True)
    files = [*write_files(report, folder), write_page(report, folder)]
    if output or (source / GRID).exists():  # a table that was read is left as it is
        files.append(write_table(report.results, folder / TABLE))
    console.print("\n".join(map(str, [*report.warnings, *files])))


def _print_runs(console: Console, runs: Sequence[GridRun], metric: str) -> list[RunStatus]:
    """Print a line for each run with its last value of the metric and seconds of a step, and the failures."""
    statuses, shown = [run.status() for run in runs], Table(title="runs")
    for name in ("variant", "seed", "state", "step", metric, "s a step"):
        shown.add_column(name, justify="left" if name == "variant" else "right", overflow="fold")
    for run, status in zip(runs, statuses, strict=True):
        values, seconds = (
            [logged[name] for _, logged in sorted(status.metrics.items()) if name in logged]
            for name in (metric, STEP_SECONDS)
        )
        value = f"{values[-1]:.3f}" if values else "–"
        took = f"{mean(seconds):.1f}" if seconds else "–"
        done = f"{max(status.metrics, default=0)}/{run.training.steps}"
        shown.add_row(run.variant, str(run.seed), status.state, done, value, took)
    console.print(shown, "")
    for run, status in zip(runs, statuses, strict=True):
        if status.reason is not None:
            console.print(f"\n{run.name} {status.state}:\n{status.reason.rstrip()}", style="red")
    return statuses
