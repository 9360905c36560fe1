"""``grpo-verl-ext ablate`` on the terminal: the table of runs, the failures, and the comparison."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING

from omegaconf import DictConfig
from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from grpo_verl_ext.ablation import checks
from grpo_verl_ext.ablation.grid import (
    AblationError,
    GridRun,
    GridSettings,
    check_unchanged,
    runs_of,
)
from grpo_verl_ext.ablation.page import COLOURS, write_page
from grpo_verl_ext.ablation.plan import print_power, run_until_decided
from grpo_verl_ext.ablation.report import report_of, write_files
from grpo_verl_ext.ablation.run import check_records, go
from grpo_verl_ext.ablation.state import (
    RunStatus,
    State,
    noted_job,
    status_of,
)
from grpo_verl_ext.ablation.table import read_any
from grpo_verl_ext.ablation.verdicts import control_of
from grpo_verl_ext.runs.provenance import git_revision
from grpo_verl_ext.utils.console import make_console

if TYPE_CHECKING:
    from grpo_verl_ext.ablation.ray_jobs import RayCluster

_WIDTH = 120
"""Smallest width in columns, so that a row of numbers is one line."""


def print_plan(
    settings: GridSettings,
    plugin: checks.Plugin,
    *,
    retry_failed: bool,
    command: str,
    pilot: Path | None,
) -> None:
    """Compose and list all runs, with the ``command`` that starts them and what a declaration can tell."""
    console, runs = make_console(), runs_of(settings)
    checks.compose_runs(runs, plugin)
    check_records(runs)
    check_unchanged(settings)
    statuses = [status_of(run) for run in runs]
    console.print(_runs_table(statuses, settings.metrics[0]), "")
    left = [status for status in statuses if status.is_to_do(retry_failed=retry_failed)]
    seconds = [second for status in statuses for second in status.step_seconds]
    time = "time unknown before the first step"
    if seconds:  # of steps, without the start of Ray, actor and rollout
        steps = sum(status.run.training.steps - status.step for status in left)
        time = f"about {steps * mean(seconds) / 60:.0f} min of steps"
    console.print(f"{len(left)} of {len(runs)} runs to do, {time}. To start them: {command}")
    _print_failures(console, statuses)
    print_power(console, settings, pilot)
    _print_missing_control(console, settings)


def run_grid(
    settings: GridSettings,
    plugin: checks.Plugin,
    *,
    retry_failed: bool,
    ray_address: str | None = None,
    jobs: int = 1,
    until_decided: bool = False,
) -> bool:
    """Check all runs, train those that are to do, and return whether all that are asked for are finished."""
    console, cluster = make_console(), None
    most = settings.declared_starts().most if until_decided else None
    if ray_address is not None:
        from grpo_verl_ext.ablation.ray_jobs import connected

        cluster = connected(ray_address.rstrip("/"), jobs, console.print)
    elif jobs > 1:
        valid = "valid is 1, for each run has the machine to itself. Type: --ray-address http://HOST:8265"
        raise AblationError(f"--jobs is {jobs}; without a cluster {valid}")
    runs = [run for run in runs_of(settings) if run.seed in settings.seeds[:most]]
    configs = checks.compose_runs(runs, plugin)
    check_unchanged(settings)
    checks.check_runs(configs, plugin, here=cluster is None)
    given = f"Ray: the one at {cluster.address}, which --ray-address names" if cluster else None
    for line in dict.fromkeys(given or run.training.ray.words for run in runs):
        console.print(line)
    _print_missing_control(console, settings)
    if settings.is_declared and git_revision() is None:
        console.print("grpo_verl_ext is no checkout of git here: the records have versions and no commit")

    def train(seeds: Sequence[int]) -> bool:
        chosen = [run for run in runs if run.seed in seeds]
        return _train(console, settings, chosen, configs, retry_failed=retry_failed, cluster=cluster)

    finished = run_until_decided(console, settings, train) if until_decided else train(settings.seeds)
    console.print(f"To compare the runs: grpo-verl-ext ablate report {settings.folder}")
    return finished


def _train(
    console: Console,
    settings: GridSettings,
    runs: Sequence[GridRun],
    configs: Mapping[str, DictConfig],
    *,
    retry_failed: bool,
    cluster: RayCluster | None,
) -> bool:
    """Train those of the runs that are to do, and return whether all are finished."""

    naming = nullcontext() if cluster is None else _jobs_named_at_the_end(console, runs)
    with naming, Live(console=console, refresh_per_second=2) as live:
        go(
            settings,
            runs,
            live,
            retry_failed=retry_failed,
            cluster=cluster,
            inputs_of=lambda run: checks.inputs_of(configs[run.name]),
        )
        statuses = [status_of(run) for run in runs]
        live.update(_runs_table(statuses, settings.metrics[0]))
    console.print()
    _print_failures(console, statuses)
    return all(status.state is State.FINISHED for status in statuses)


def print_report(source: Path, *, output: Path | None = None) -> None:
    """Compare the finished runs of a grid's folder or table, on the terminal and in files beside it."""
    results, of_source = read_any(source)
    report, console = report_of(results), make_console(at_least=_WIDTH)
    for line in report.missing:
        console.print(line, style="red")
    for label, sentence in report.statements:
        console.print(Text.assemble((f"{label}:", f"bold white on {COLOURS[label]}"), f" {sentence}"))
    for line in report.exploratory:
        console.print(line)
    console.print()
    for title, columns, lines in report.tables:
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for name in columns:
            table.add_column(name, justify="left" if name in ("check", "variant") else "right")
        for cells in lines:
            table.add_row(*cells)
        console.print(table)  # it ends with a blank line
    for line in report.warnings:
        console.print(line)
    folder = output or of_source
    folder.mkdir(parents=True, exist_ok=True)
    for file in [*write_files(report, folder), write_page(report, folder)]:
        console.print(str(file))


def _runs_table(statuses: Sequence[RunStatus], metric: str) -> Table:
    """A line for each run: its state, last step, last value of the metric, and seconds of a step."""
    shown = Table(title="runs")
    for name in ("variant", "seed", "state", "step", metric, "s a step"):
        shown.add_column(name, justify="left" if name == "variant" else "right", overflow="fold")
    for status in statuses:
        values = [values[metric] for _, values in sorted(status.metrics.items()) if metric in values]
        seconds = status.step_seconds
        shown.add_row(
            *(status.run.variant, str(status.run.seed), status.state.value),
            f"{status.step}/{status.run.training.steps}",
            f"{values[-1]:.3f}" if values else "–",
            f"{mean(seconds):.1f}" if seconds else "–",
        )
    return shown


def _print_missing_control(console: Console, settings: GridSettings) -> None:
    control = control_of(settings)
    if control is not None and not control.passed:
        fix = "grpo-verl-ext ablate run <file of that grid>"
        console.print(f"{control.sentence}. Without it every verdict is blind. Type: {fix}", style="red")


def _print_failures(console: Console, statuses: Sequence[RunStatus]) -> None:
    for status in statuses:
        if status.reason is not None:
            console.print(f"\n{status.run.name} {status.state.value}:\n{status.reason.rstrip()}", style="red")
        if status.state is State.FAILED:
            console.print("To try it again: --retry-failed")


@contextmanager
def _jobs_named_at_the_end(console: Console, runs: Sequence[GridRun]) -> Iterator[None]:
    """However the block ends, SIGTERM included, name the jobs that continue on the cluster."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        for job in filter(None, (noted_job(run.training.folder) for run in runs)):
            console.print(
                f"job {job.submission_id} continues; run the same command again to watch it. "
                f"To stop it: {job.stop_command}"
            )
