"""``grpo-verl-ext ablate`` on the terminal: the plan, a live table, what failed."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from grpo_verl_ext.ablation import checks
from grpo_verl_ext.ablation.grid import GridRun, GridSettings, runs_of
from grpo_verl_ext.ablation.ray_jobs import noted_job
from grpo_verl_ext.ablation.results import keep_grid
from grpo_verl_ext.ablation.run_state import Standing, State, standing_of, state_of
from grpo_verl_ext.ablation.runner import check_records, go, place_at
from grpo_verl_ext.ablation.statistics import STEP_SECONDS, curve, final
from grpo_verl_ext.runs.metrics import Metrics
from grpo_verl_ext.tasks.chain_sum.prepare import run_prepare
from grpo_verl_ext.utils.which_ray import WhichRay


def plan_and_report(settings: GridSettings, *, retry_failed: bool) -> None:
    """Compose everything, start nothing."""
    console = _console()
    runs = runs_of(settings)
    checks.compose(runs)
    check_records(runs)
    standings = _standings(runs)
    console.print(_table(standings, settings.metrics[0]))
    left = [standing for standing in standings if standing.is_to_do(retry_failed=retry_failed)]
    console.print(
        f"{len(left)} of {len(runs)} runs to do, {_estimate(standings, left)}. Type --run to start."
    )
    _print_failures(console, standings)


def run_and_report(
    settings: GridSettings, *, retry_failed: bool, ray_address: str | None = None, jobs: int = 1
) -> bool:
    """Check everything, then run what is to do, here or on a Ray cluster; are all runs finished?"""
    console = _console()
    place = place_at(ray_address, jobs, lambda words: console.print(words, markup=False))
    runs = runs_of(settings)
    configs = checks.compose(runs)
    for seed in checks.tasks_to_prepare(configs):
        run_prepare(seed, force=False)
    if place.address is None:  # a cluster has devices, files and packages of its own; the job checks them
        checks.check(configs)
    for words in _which_rays(place.address, runs):
        console.print(words, markup=False)
    keep_grid(settings)
    naming = nullcontext() if place.address is None else _jobs_named_at_the_end(console, runs)
    with naming, Live(console=console, refresh_per_second=2) as live:
        watched = _Watched(live, runs, settings.metrics[0], place.at_once)
        go(Path(settings.folder), runs, watched, retry_failed=retry_failed, place=place)
        standings = _standings(runs)
        live.update(_table(standings, settings.metrics[0]))
    _print_failures(console, standings)
    console.print(f"What they say: grpo-verl-ext report {settings.folder}", markup=False)
    return all(standing.state is State.FINISHED for standing in standings)


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
    """The last step of each run that is at work, by its name."""

    def begin(self, run: GridRun) -> None:
        """A line that stays, where there is no terminal."""
        self.live.console.print(f"{time.strftime('%H:%M:%S')} {escape(run.name)} begins")
        self.metrics(run, {})

    def metrics(self, run: GridRun, metrics: Metrics) -> None:
        self.steps[run.name] = max(metrics, default=0)
        standings = _standings(self.runs)
        left = [standing for standing in standings if standing.is_to_do(retry_failed=False)]
        now = "; ".join(f"{name}, step {step}" for name, step in self.steps.items())
        words = Text(f"now {now}; {_estimate(standings, left, self.at_once)}")
        self.live.update(Group(_table(standings, self.metric), words))

    def end(self, run: GridRun) -> None:
        del self.steps[run.name]
        self.live.console.print(f"{time.strftime('%H:%M:%S')} {escape(run.name)}: {state_of(run).value}")


def _standings(runs: Sequence[GridRun]) -> list[Standing]:
    """Of every run, by reading all its metrics: done once for what is shown together."""
    return [standing_of(run) for run in runs]


def _table(standings: Sequence[Standing], metric: str) -> Table:
    shown = Table(title="runs")
    for name in ("variant", "seed", "state", "step", metric, "s a step"):
        shown.add_column(name, justify="left" if name == "variant" else "right", overflow="fold")
    for standing in standings:
        values = curve(standing.metrics, metric)
        seconds = _step_seconds(standing.metrics)
        shown.add_row(
            escape(standing.run.variant),
            str(standing.run.seed),
            standing.state.value,
            f"{standing.step}/{standing.run.training.steps}",
            f"{final(values):.3f}" if values else "–",
            f"{mean(seconds):.1f}" if seconds else "–",
        )
    return shown


def _estimate(standings: Sequence[Standing], left: Sequence[Standing], at_once: int = 1) -> str:
    """From the steps that there are; starting Ray, actor and rollout comes on top."""
    seconds = [second for standing in standings for second in _step_seconds(standing.metrics)]
    if not seconds:
        return "time unknown before the first step"
    steps = sum(standing.run.training.steps - standing.step for standing in left)
    return f"about {steps * mean(seconds) / 60 / at_once:.0f} min of steps"


def _step_seconds(metrics: Metrics) -> list[float]:
    return [values[STEP_SECONDS] for values in metrics.values() if STEP_SECONDS in values]


def _print_failures(console: Console, standings: Sequence[Standing]) -> None:
    for standing in standings:
        if standing.trouble is not None:
            trouble = standing.trouble.rstrip()
            console.print(
                f"\n{standing.run.name} {standing.state.value}:\n{trouble}", markup=False, style="red"
            )
        if standing.state is State.FAILED:
            console.print("--retry-failed tries it again", markup=False)


@contextmanager
def _jobs_named_at_the_end(console: Console, runs: Sequence[GridRun]) -> Iterator[None]:
    """Whatever ends the block, a kill by SIGTERM included: the jobs that go on without us are named."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        for job in filter(None, (noted_job(run.training.folder) for run in runs)):
            console.print(
                f"job {job.submission_id} goes on; the same command goes on watching it. "
                f"To stop it: {job.stop_command}",
                markup=False,
            )


def _console() -> Console:
    return Console(soft_wrap=True, highlight=False)
