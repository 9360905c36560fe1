"""``grpo-verl-ext ablate`` on the terminal: the table of runs, the failures, and the comparison."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import mean

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from grpo_verl_ext.ablation import checks, documents, html, plots, summary
from grpo_verl_ext.ablation.analysis import analyse
from grpo_verl_ext.ablation.compact import read_any, write_compact
from grpo_verl_ext.ablation.grid import GridRun, GridSettings, runs_of
from grpo_verl_ext.ablation.ray_jobs import noted_job
from grpo_verl_ext.ablation.results import check_unchanged, keep_grid
from grpo_verl_ext.ablation.run_state import RunStatus, State, state_of, status_of
from grpo_verl_ext.ablation.runner import check_records, executor_at, go
from grpo_verl_ext.ablation.statistics import STEP_SECONDS, curve, final
from grpo_verl_ext.ablation.summary import Statement, TextTable
from grpo_verl_ext.runs.metrics import Metrics
from grpo_verl_ext.tasks.chain_sum.prepare import run_prepare
from grpo_verl_ext.utils.console import make_console, print_table
from grpo_verl_ext.utils.which_ray import WhichRay

WIDTH = 120
"""Smallest width in columns, so that a row of numbers is one line."""


def print_plan(settings: GridSettings, *, retry_failed: bool, command: str) -> None:
    """Compose all runs and list them; start nothing.

    Args:
        command: the line that starts them.
    """
    console = make_console()
    runs = runs_of(settings)
    checks.compose(runs)
    check_records(runs)
    check_unchanged(settings)
    statuses = _statuses(runs)
    print_table(console, _table(statuses, settings.metrics[0]))
    left = [status for status in statuses if status.is_to_do(retry_failed=retry_failed)]
    console.print(
        f"{len(left)} of {len(runs)} runs to do, {_estimate(statuses, left)}. To start them: {command}",
        markup=False,
    )
    _print_failures(console, statuses)


def run_grid(
    settings: GridSettings, *, retry_failed: bool, ray_address: str | None = None, jobs: int = 1
) -> bool:
    """Check all runs, then train those that are to do, on this machine or a Ray cluster.

    Returns:
        Whether all runs are finished.
    """
    console = make_console()
    executor = executor_at(ray_address, jobs, lambda text: console.print(text, markup=False))
    runs = runs_of(settings)
    configs = checks.compose(runs)
    for task, seed in checks.tasks_to_prepare(configs):
        run_prepare(task, seed, force=False)
    if executor.address is None:  # a cluster has its own devices, files and packages: the job checks them
        checks.check(configs)
    for line in _which_rays(executor.address, runs):
        console.print(line, markup=False)
    naming = nullcontext() if executor.address is None else _jobs_named_at_the_end(console, runs)
    keep = partial(keep_grid, settings)
    with naming, Live(console=console, refresh_per_second=2) as live:
        watched = _Watched(live, runs, settings.metrics[0], executor.at_once)
        go(Path(settings.folder), runs, watched, retry_failed=retry_failed, executor=executor, accepted=keep)
        statuses = _statuses(runs)
        live.update(_table(statuses, settings.metrics[0]))
    console.print()
    _print_failures(console, statuses)
    console.print(f"To compare the runs: grpo-verl-ext ablate report {settings.folder}", markup=False)
    return all(status.state is State.FINISHED for status in statuses)


def print_report(source: Path, *, threshold: float | None, compact: Path | None = None) -> None:
    """Compare a grid's finished runs on the terminal and in files.

    Args:
        source: the grid's folder, which takes the files; or its compact file, whose folder takes them.
        compact: also write this compact file.

    Raises:
        AblationError: the source cannot be read, or the compact file not be written.
    """
    results, folder = read_any(source)
    analysis = analyse(results, threshold=threshold)
    console = make_console(at_least=WIDTH)
    for line in analysis.missing:
        console.print(line, markup=False, style="red")
    for statement in summary.statements(analysis):
        console.print(_set_off(statement))
    for line in summary.exploratory_lines(analysis):
        console.print(line, markup=False)
    console.print()
    for shown in summary.tables(analysis):
        console.print(_table_of_text(shown))  # the box ends with a blank line
    for line in [*summary.thresholds(analysis), *analysis.warnings]:
        console.print(line, markup=False)
    written = [
        *documents.write(analysis, folder),
        *plots.draw(analysis, folder),
        html.write(analysis, folder),
    ]
    if compact is not None:
        write_compact(results, compact)
        written.append(compact)
    for file in written:
        console.print(str(file), markup=False)


def _which_rays(address: str | None, runs: Sequence[GridRun]) -> Iterable[str]:
    if address is not None:
        return [WhichRay(address, "--ray-address").words]
    return dict.fromkeys(run.training.ray.words for run in runs)


@dataclass
class _Watched:
    """Redraws the table when something happens."""

    live: Live
    runs: Sequence[GridRun]
    metric: str
    at_once: int
    steps: dict[str, int] = field(default_factory=dict)
    """Last step of each run that is being trained, by its name."""
    statuses: dict[str, RunStatus] = field(default_factory=dict)
    """Status of each run, by its name; the files of a run are read when it begins and ends."""

    def begin(self, run: GridRun) -> None:
        """Print a line, which also stays where the output is not a terminal."""
        self.live.console.print(f"{time.strftime('%H:%M:%S')} {escape(run.name)} begins")
        self.statuses = {each.name: status_of(each) for each in self.runs}
        self.metrics(run, self.statuses[run.name].metrics)

    def metrics(self, run: GridRun, metrics: Metrics) -> None:
        if self.steps.get(run.name) == max(metrics, default=0):
            return
        self.steps[run.name] = max(metrics, default=0)
        self.statuses[run.name] = replace(self.statuses[run.name], metrics=metrics)
        statuses = list(self.statuses.values())
        left = [status for status in statuses if status.is_to_do(retry_failed=False)]
        now = "; ".join(f"{name}, step {step}" for name, step in self.steps.items())
        line = Text(f"now {now}; {_estimate(statuses, left, self.at_once)}")
        self.live.update(Group(_table(statuses, self.metric), line))

    def end(self, run: GridRun) -> None:
        del self.steps[run.name]
        self.statuses[run.name] = status_of(run)
        self.live.console.print(f"{time.strftime('%H:%M:%S')} {escape(run.name)}: {state_of(run).value}")


def _statuses(runs: Sequence[GridRun]) -> list[RunStatus]:
    """Status of every run; reads all metrics, so it is called once per redraw."""
    return [status_of(run) for run in runs]


def _table(statuses: Sequence[RunStatus], metric: str) -> Table:
    shown = Table(title="runs")
    for name in ("variant", "seed", "state", "step", metric, "s a step"):
        shown.add_column(name, justify="left" if name == "variant" else "right", overflow="fold")
    for status in statuses:
        values = curve(status.metrics, metric)
        seconds = _step_seconds(status.metrics)
        shown.add_row(
            escape(status.run.variant),
            str(status.run.seed),
            status.state.value,
            f"{status.step}/{status.run.training.steps}",
            f"{final(values):.3f}" if values else "–",
            f"{mean(seconds):.1f}" if seconds else "–",
        )
    return shown


def _estimate(statuses: Sequence[RunStatus], left: Sequence[RunStatus], at_once: int = 1) -> str:
    """Minutes left, from the steps measured so far; without the start of Ray, actor and rollout."""
    seconds = [second for status in statuses for second in _step_seconds(status.metrics)]
    if not seconds:
        return "time unknown before the first step"
    steps = sum(status.run.training.steps - status.step for status in left)
    return f"about {steps * mean(seconds) / 60 / at_once:.0f} min of steps"


def _step_seconds(metrics: Metrics) -> list[float]:
    return [values[STEP_SECONDS] for values in metrics.values() if STEP_SECONDS in values]


def _print_failures(console: Console, statuses: Sequence[RunStatus]) -> None:
    for status in statuses:
        if status.reason is not None:
            console.print(
                f"\n{status.run.name} {status.state.value}:\n{status.reason.rstrip()}",
                markup=False,
                style="red",
            )
        if status.state is State.FAILED:
            console.print("To try it again: --retry-failed", markup=False)


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
                f"To stop it: {job.stop_command}",
                markup=False,
            )


def _set_off(statement: Statement) -> Text:
    label = (f"{statement.label}:", f"bold white on {statement.colour}")
    return Text.assemble(label, f" {statement.sentence}")


def _table_of_text(shown: TextTable) -> Table:
    table = Table(title=escape(shown.title), title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in shown.columns:
        table.add_column(name, justify="left" if name in ("check", "variant") else "right")
    for line in shown.lines:
        table.add_row(*(escape(cell) for cell in line))
    return table
