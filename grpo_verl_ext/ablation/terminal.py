"""``grpo-verl-ext ablate`` on the terminal: the table of runs, the failures, and the comparison."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from grpo_verl_ext.ablation.declaration.grid import GridRun, GridSettings, runs_of
from grpo_verl_ext.ablation.declaration.kept import check_unchanged, keep_grid, note_beginning
from grpo_verl_ext.ablation.report.figures import draw
from grpo_verl_ext.ablation.report.page import write_page
from grpo_verl_ext.ablation.report.plan import (
    NO_SOURCES,
    Sources,
    declared_starts,
    print_power,
    run_until_decided,
)
from grpo_verl_ext.ablation.report.summary import Statement, TextTable, report_of, tracked, write_files
from grpo_verl_ext.ablation.running import checks, inputs
from grpo_verl_ext.ablation.running.reproduce import Difference, changed, differences, grid_of_one, kept_run
from grpo_verl_ext.ablation.running.results import COMPACT, read_any, read_results, write_compact
from grpo_verl_ext.ablation.running.runner import (
    Executor,
    check_clean,
    check_records,
    check_resumed,
    executor_at,
    go,
)
from grpo_verl_ext.ablation.running.state import (
    Progress,
    RunStatus,
    State,
    estimate,
    noted_job,
    runs_table,
    status_of,
)
from grpo_verl_ext.ablation.statistics.analysis import analyse
from grpo_verl_ext.ablation.statistics.verdicts import missing_control
from grpo_verl_ext.runs.provenance import git_revision, machine, utc_now, versions
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
    sources: Sources = NO_SOURCES,
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
    print_power(console, settings, sources)
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
    _prepare_tasks(settings, runs, configs, plugin)
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


def _prepare_tasks(
    settings: GridSettings,
    runs: Sequence[GridRun],
    configs: Mapping[str, DictConfig],
    plugin: checks.Plugin,
) -> None:
    """Prepare the embedded tasks; a declared comparison takes a clean checkout and standard starts."""
    tasks = checks.tasks_to_prepare(configs, plugin)
    if settings.is_declared and tasks:
        check_clean()
    for task, seed in tasks:
        plugin.prepare(task, seed)
    if settings.is_declared:
        checks.check_starts(runs, configs, plugin)


def _before_a_declared_run(
    settings: GridSettings, inputs_of: Callable[[GridRun], Mapping[str, str]], run: GridRun
) -> None:
    check_clean(run)
    check_resumed(run, inputs_of)
    note_beginning(settings, git_revision(), utc_now())
    run.training.folder.mkdir(parents=True, exist_ok=True)  # it has begun, though its files are hashed first


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
    keep = partial(keep_grid, settings)

    def inputs_of(run: GridRun) -> Mapping[str, str]:
        return inputs.inputs_of(configs[run.name])

    declared = partial(_before_a_declared_run, settings, inputs_of)
    naming = nullcontext() if executor.address is None else _jobs_named_at_the_end(console, runs)
    with naming, Live(console=console, refresh_per_second=2) as live:
        watched = Progress(live, runs, settings.metrics[0], executor.at_once)
        go(
            Path(settings.folder),
            runs,
            watched,
            retry_failed=retry_failed,
            executor=executor,
            accepted=keep,
            before_each=declared if settings.is_declared else lambda _: None,
            inputs_of=inputs_of,
        )
        statuses = [status_of(run) for run in runs]
        live.update(runs_table(statuses, settings.metrics[0]))
    console.print()
    _print_failures(console, statuses)
    return all(status.state is State.FINISHED for status in statuses)


Push = Callable[[str, str, Mapping[str, Any], Sequence[tuple[int, Mapping[str, float]]]], None]
"""Sends project, name, configuration and rows, numbers by step, to a tracker."""


def print_report(
    source: Path,
    *,
    threshold: float | None,
    compact: Path | None = None,
    output: Path | None = None,
    push: Push | None = None,
) -> None:
    """Compare a grid's finished runs on the terminal and in files.

    Args:
        source: the grid's folder, which takes the files; or its compact file, whose folder takes them.
        compact: also write this compact file.
        output: take the files into this folder instead.
        push: also send the curves and the verdicts to a tracker.

    Raises:
        AblationError: the source cannot be read, or the compact file not be written.
    """
    results, of_source = read_any(source)
    analysis = analyse(results, threshold=threshold)
    report = report_of(analysis)
    console = make_console(at_least=_WIDTH)
    for line in analysis.missing:
        console.print(line, style="red")
    for statement in report.statements:
        console.print(_set_off(statement))
    for line in report.exploratory:
        console.print(line)
    console.print()
    for shown in report.tables:
        console.print(_table_of_text(shown))  # the box ends with a blank line
    for line in [*report.thresholds, *analysis.warnings]:
        console.print(line)
    folder = output or of_source
    folder.mkdir(parents=True, exist_ok=True)
    written = [*write_files(report, folder), *draw(report, folder), write_page(report, folder)]
    if compact is not None:
        write_compact(analysis.results, compact)
        written.append(compact)
    for file in written:
        console.print(str(file))
    if push is not None:
        push(of_source.resolve().name, "report", *tracked(report))


def reproduce(source: Path, name: str, plugin: checks.Plugin, output: Path | None = None) -> bool:
    """Train one kept run again, or resume that, and say what is the same.

    Args:
        source: the grid's folder, or its compact file.
        name: ``<variant>/seed-<seed>``.
        output: takes the new training; None: ``outputs/reproduced/<name of the grid's folder>``, and one in
            it for a compact file of another name than ``runs.json``.

    Returns:
        Whether the start and every number of the training are the same to the bit.

    Raises:
        AblationError: the run is unknown, or cannot be trained again.
    """
    console = make_console(at_least=_WIDTH)
    results, of_source = read_any(source)
    kept = kept_run(results, name)
    own = "" if source.is_dir() or source.name == COMPACT else source.stem
    folder = output or Path("outputs/reproduced") / of_source.resolve().name / own
    settings = grid_of_one(results.settings, kept, folder)
    (run,) = runs = runs_of(settings)
    configs = checks.compose_runs(runs, plugin)
    _prepare_tasks(settings, runs, configs, plugin)
    checks.check_runs(configs, plugin)
    # a record of an earlier version has the model and the data alone
    all_inputs = inputs.inputs_of(configs[run.name])
    known = {key: value for key, value in all_inputs.items() if key in kept.record.inputs}
    check_resumed(run, lambda _: all_inputs)
    made_with = changed(
        kept.record, inputs=known, versions=versions(), revision=git_revision(), machine=machine()
    )
    _print_made_with(console, made_with)
    executor = executor_at(None, 1, console.print)
    if not _train(console, settings, runs, configs, retry_failed=True, executor=executor):
        return False
    found = differences(kept, read_results(folder))
    _print_differences(console, found, settings.metrics)
    return known == kept.record.inputs and not any(each.largest for each in found)


def _print_made_with(console: Console, changed: Sequence[tuple[str, str, str]]) -> None:
    """Print what the training is made with now, where that is not what the record has."""
    if not changed:
        console.print("model, data, commit, versions and machine are those of the record")
        return
    shown = _new_table("what differs from the record", ("", "then", "now"))
    for row in changed:
        shown.add_row(*row)
    console.print(shown)


def _print_differences(console: Console, found: Sequence[Difference], metrics: Sequence[str]) -> None:
    """Print the first metric that differs and the grid's metrics, and count the others."""
    differing = [each for each in found if each.first is not None]
    if not differing:
        console.print(
            f"all {len(found)} metrics are the same to the bit at every step; those of the machine, such as "
            f"timing_s/step, were not compared"
        )
        return
    first = min(differing, key=lambda each: each.first or 0)
    console.print(
        f"{len(differing)} of {len(found)} metrics differ, first {first.metric} at step {first.first}"
    )
    shown = _new_table("largest differences", ("metric", "steps", "first step that differs", "difference"))
    for each in found:
        if each.metric in metrics or each is first:
            begins = "–" if each.first is None else str(each.first)
            shown.add_row(each.metric, str(each.steps), begins, f"{each.largest:.3g}")
    console.print(shown)


def _new_table(title: str, columns: Sequence[str]) -> Table:
    shown = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for column in columns:
        shown.add_column(column, overflow="fold")
    return shown


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


def _set_off(statement: Statement) -> Text:
    label = (f"{statement.label}:", f"bold white on {statement.colour}")
    return Text.assemble(label, f" {statement.sentence}")


def _table_of_text(shown: TextTable) -> Table:
    table = Table(title=shown.title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in shown.columns:
        table.add_column(name, justify="left" if name in ("check", "variant") else "right")
    for line in shown.lines:
        table.add_row(*line)
    return table
