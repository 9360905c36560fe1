"""``grpo-verl-ext ablate`` on the terminal: the table of runs, the failures, and the comparison."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

from omegaconf import DictConfig
from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from grpo_verl_ext.ablation import checks, inputs
from grpo_verl_ext.ablation.analysis import analyse
from grpo_verl_ext.ablation.figures import draw
from grpo_verl_ext.ablation.grid import GridRun, GridSettings, runs_of
from grpo_verl_ext.ablation.kept import check_unchanged, keep_grid, note_beginning
from grpo_verl_ext.ablation.page import write_page
from grpo_verl_ext.ablation.plan import declared_starts, print_power, run_until_decided
from grpo_verl_ext.ablation.report import TextTable, report_of, tracked, write_files
from grpo_verl_ext.ablation.run import (
    Executor,
    check_clean,
    check_records,
    check_resumed,
    executor_at,
    go,
)
from grpo_verl_ext.ablation.state import (
    Progress,
    RunStatus,
    State,
    estimate,
    noted_job,
    runs_table,
    status_of,
)
from grpo_verl_ext.ablation.table import read_any
from grpo_verl_ext.ablation.verdicts import missing_control
from grpo_verl_ext.runs.provenance import git_revision, utc_now
from grpo_verl_ext.utils.console import make_console, print_table
from grpo_verl_ext.utils.which_ray import WhichRay

_WIDTH = 120
"""Smallest width in columns, so that a row of numbers is one line."""


def print_plan(
    settings: GridSettings,
    plugin: checks.Plugin,
    *,
    retry_failed: bool,
    command: str,
    pilot: Path | None,
    sd: float | None,
) -> None:
    """Compose all runs and list them, and say what a declaration can tell; start nothing.

    Args:
        command: the line that starts them.
    """
    console = make_console()
    runs = runs_of(settings)
    checks.compose_runs(runs, plugin)
    check_records(runs)
    check_unchanged(settings)
    statuses = [status_of(run) for run in runs]
    print_table(console, runs_table(statuses, settings.metrics[0]))
    left = [status for status in statuses if status.is_to_do(retry_failed=retry_failed)]
    console.print(
        f"{len(left)} of {len(runs)} runs to do, {estimate(statuses, left)}. To start them: {command}"
    )
    _print_failures(console, statuses)
    print_power(console, settings, pilot, sd)
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
    """Check all runs, then train those that are to do, on this machine or a Ray cluster.

    Args:
        until_decided: train as many starts as the declared rule asks for, and print the verdicts.

    Returns:
        Whether all these runs are finished.
    """
    console = make_console()
    most = declared_starts(settings).most if until_decided else None
    executor = executor_at(ray_address, jobs, console.print)
    runs = [run for run in runs_of(settings) if run.seed in settings.seeds[:most]]
    configs = checks.compose_runs(runs, plugin)
    check_unchanged(settings)
    tasks = checks.tasks_to_prepare(configs, plugin)
    if settings.is_declared and tasks:
        check_clean()
    for task, seed in tasks:
        plugin.prepare(task, seed)
    if settings.is_declared:
        checks.check_starts(runs, configs, plugin)
    if executor.address is None:  # a cluster has its own devices, files and packages: the job checks them
        checks.check_runs(configs, plugin)
    for line in _which_rays(executor.address, runs):
        console.print(line)
    _print_missing_control(console, settings)
    if settings.is_declared and git_revision() is None:
        console.print("grpo_verl_ext is no checkout of git here: the records have versions and no commit")

    def train(seeds: Sequence[int]) -> bool:
        chosen = [run for run in runs if run.seed in seeds]
        return _train(console, settings, chosen, configs, retry_failed=retry_failed, executor=executor)

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
    executor: Executor,
) -> bool:
    """Train those of the runs that are to do, and return whether all are finished."""

    def inputs_of(run: GridRun) -> Mapping[str, str]:
        return inputs.inputs_of(configs[run.name])

    def before_each(run: GridRun) -> None:
        if settings.is_declared:
            check_clean(run)
            check_resumed(run, inputs_of)
            note_beginning(settings, git_revision(), utc_now())
            run.training.folder.mkdir(
                parents=True, exist_ok=True
            )  # it has begun, before its files are hashed

    naming = nullcontext() if executor.address is None else _jobs_named_at_the_end(console, runs)
    with naming, Live(console=console, refresh_per_second=2) as live:
        go(
            Path(settings.folder),
            runs,
            Progress(live, runs, settings.metrics[0], executor.at_once),
            retry_failed=retry_failed,
            executor=executor,
            accepted=partial(keep_grid, settings),
            before_each=before_each,
            inputs_of=inputs_of,
        )
        statuses = [status_of(run) for run in runs]
        live.update(runs_table(statuses, settings.metrics[0]))
    console.print()
    _print_failures(console, statuses)
    return all(status.state is State.FINISHED for status in statuses)


def print_report(
    source: Path,
    *,
    threshold: float | None,
    output: Path | None = None,
    push: Callable[..., None] | None = None,
) -> None:
    """Compare a grid's finished runs on the terminal and in files.

    Args:
        source: the grid's folder, or the table of a report; the files go into that folder.
        output: take the files into this folder instead.
        push: sends project, name, configuration and rows, numbers by step, to a tracker; None: nowhere.

    Raises:
        AblationError: the source cannot be read.
    """
    results, of_source = read_any(source)
    report = report_of(analyse(results, threshold=threshold))
    console = make_console(at_least=_WIDTH)
    for line in report.analysis.missing:
        console.print(line, style="red")
    for each in report.statements:
        label = (f"{each.label}:", f"bold white on {each.colour}")
        console.print(Text.assemble(label, f" {each.sentence}"))
    for line in report.exploratory:
        console.print(line)
    console.print()
    for shown in report.tables:
        console.print(_table_of_text(shown))  # the box ends with a blank line
    for line in [*report.thresholds, *report.analysis.warnings]:
        console.print(line)
    folder = output or of_source
    folder.mkdir(parents=True, exist_ok=True)
    for file in [*write_files(report, folder), *draw(report, folder), write_page(report, folder)]:
        console.print(str(file))
    if push is not None:
        push(of_source.resolve().name, "report", *tracked(report))


def _print_missing_control(console: Console, settings: GridSettings) -> None:
    missing = missing_control(settings)
    if missing is not None:
        console.print(missing, style="red")


def _which_rays(address: str | None, runs: Sequence[GridRun]) -> Iterable[str]:
    if address is not None:
        return [WhichRay(address, "--ray-address").words]
    return dict.fromkeys(run.training.ray.words for run in runs)


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


def _table_of_text(shown: TextTable) -> Table:
    table = Table(title=shown.title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in shown.columns:
        table.add_column(name, justify="left" if name in ("check", "variant") else "right")
    for line in shown.lines:
        table.add_row(*line)
    return table
