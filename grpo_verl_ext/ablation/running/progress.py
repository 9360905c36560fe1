"""The table of runs on the terminal, redrawn while they are trained, and an estimate of the time left."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import mean

from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from grpo_verl_ext.ablation.declaration.grid import GridRun
from grpo_verl_ext.ablation.running.state import RunStatus, status_of
from grpo_verl_ext.ablation.statistics.measures import STEP_SECONDS, curve, final
from grpo_verl_ext.runs.metrics import Metrics


@dataclass
class Progress:
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
        """Redraw the table if a step was logged."""
        if self.steps.get(run.name) == max(metrics, default=0):
            return
        self.steps[run.name] = max(metrics, default=0)
        self.statuses[run.name] = replace(self.statuses[run.name], metrics=metrics)
        statuses = list(self.statuses.values())
        left = [status for status in statuses if status.is_to_do(retry_failed=False)]
        now = "; ".join(f"{name}, step {step}" for name, step in self.steps.items())
        line = Text(f"now {now}; {estimate(statuses, left, self.at_once)}")
        self.live.update(Group(runs_table(statuses, self.metric), line))

    def trouble(self, run: GridRun, reason: str) -> None:
        """Print what no file has."""
        self.live.console.print(f"{run.name}: {reason}", markup=False, style="red")

    def end(self, run: GridRun) -> None:
        """Print how the run ended."""
        self.steps.pop(run.name, None)  # one whose folder cannot be made has not begun
        self.statuses[run.name] = status = status_of(run)
        self.live.console.print(f"{time.strftime('%H:%M:%S')} {escape(run.name)}: {status.state.value}")


def statuses_of(runs: Sequence[GridRun]) -> list[RunStatus]:
    """Status of every run; reads all metrics, so it is called once per redraw."""
    return [status_of(run) for run in runs]


def runs_table(statuses: Sequence[RunStatus], metric: str) -> Table:
    """A line for each run: its state, last step, last value of the metric, and seconds of a step."""
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


def estimate(statuses: Sequence[RunStatus], left: Sequence[RunStatus], at_once: int = 1) -> str:
    """Minutes left, from the steps measured so far; without the start of Ray, actor and rollout."""
    seconds = [second for status in statuses for second in _step_seconds(status.metrics)]
    if not seconds:
        return "time unknown before the first step"
    steps = sum(status.run.training.steps - status.step for status in left)
    return f"about {steps * mean(seconds) / 60 / at_once:.0f} min of steps"


def _step_seconds(metrics: Metrics) -> list[float]:
    return [values[STEP_SECONDS] for values in metrics.values() if STEP_SECONDS in values]
