"""Terminal output of ``grpo-verl-ext iterate``: the plan, progress bars, and a table with a row per round."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from omegaconf import DictConfig
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from grpo_verl_ext.iterate import checks
from grpo_verl_ext.iterate.rounds import ROUND_PARTS, IterateManifest, RoundContext, read_manifest, run_rounds
from grpo_verl_ext.iterate.settings import IterateSettings, Round
from grpo_verl_ext.tasks.chain_sum.prepare import run_prepare
from grpo_verl_ext.tasks.chain_sum.prepared import TASKS
from grpo_verl_ext.utils.console import make_console, print_table
from grpo_verl_ext.verl_plugin.usage import own_task

_TITLES = {
    "policy": "verl trains the policy",
    "model": "verl's merger makes a Hugging Face folder of it",
    "measure": "KL to the first policy",
    "pairs": "pairs from the rollouts, and a replay of earlier rounds",
    "reward_model": "TRL trains the reward model",
}

COLUMNS = (
    *("round", "policy before", "policy after", "KL"),
    *("new pairs", "old pairs", "held out", "RM before", "RM after"),
)
_CAPTION = (
    "KL to the first policy in nats per response. Policy: verl's val-core metrics. RM: share of held-out "
    "pairs that the reward model orders rightly, before and after its training in the round; with step_label "
    "of held-out steps that it classifies rightly."
)


def print_rounds(settings: IterateSettings) -> None:
    """Print the parts of each round, which of them are done, and verl's command line."""
    console = make_console()
    manifest = read_manifest(Path(settings.folder), settings.as_dict())
    for number in range(1, settings.rounds + 1):
        this = Round(settings, number)
        console.print(f"\nround {number}, seed {this.seed}, in {this.folder}", style="bold")
        for name in ROUND_PARTS:
            done = "done" if manifest.finished(number, name) else "to do"
            console.print(f"  {done:5}  {name:12}  {_TITLES[name]}")
        console.print("  python3 " + shlex.join(this.run().command()))


def run_iterate(settings: IterateSettings) -> None:
    """Check the settings, run all rounds, and print the table."""
    console = make_console()
    config = checks.compose_rounds(settings)
    _prepare_task(config)
    rule = checks.checked_rule(settings, config)
    console.print(Round(settings, 1).run().ray.words)
    with _progress(console, settings) as shown:
        manifest = run_rounds(settings, RoundContext(config, rule, shown.step), shown.part)
    print_table(console, table(manifest))
    console.print(f"{Path(settings.folder) / 'manifest.json'}")


def table(manifest: IterateManifest) -> Table:
    """Return the table of results, with one row per round."""
    shown = Table(title="iterative GRPO", caption=_CAPTION, caption_justify="left")
    for name in COLUMNS:
        shown.add_column(name, justify="right")
    for record in manifest.rounds:
        parts = record.parts
        policy, pairs, reward = parts.get("policy", {}), parts.get("pairs", {}), parts.get("reward_model", {})
        shown.add_row(
            str(record.round),
            _validation(policy.get("validation_before")),
            _validation(policy.get("validation_after")),
            _number(parts.get("measure", {}).get("kl_to_first")),
            *(str(pairs.get(name, "–")) for name in ("pairs", "replayed", "held_out")),
            _number(reward.get("held_out_accuracy_before")),
            _number(reward.get("held_out_accuracy_after")),
        )
    return shown


class _ProgressBar:
    """Show a bar while a part runs, and a line when it is finished."""

    def __init__(self, progress: Progress, steps: int) -> None:
        self._progress, self._steps = progress, steps
        self._bar = TaskID(0)

    @contextmanager
    def part(self, this: Round, part: str) -> Iterator[None]:
        title = f"round {this.number}: {_TITLES[part]}"
        self._bar = self._progress.add_task(title, total=self._steps if part == "policy" else None)
        yield
        task = self._progress.tasks[-1]
        self._progress.remove_task(self._bar)
        self._progress.console.print(f"{task.description}: done in {task.elapsed or 0:.0f} s")

    def step(self, number: int) -> None:
        self._progress.update(self._bar, completed=number)


@contextmanager
def _progress(console: Console, settings: IterateSettings) -> Iterator[_ProgressBar]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        yield _ProgressBar(progress, settings.policy.steps)


def _prepare_task(config: DictConfig) -> None:
    """Make the embedded task if the configuration uses it and its folder is missing."""
    task = own_task(config)
    if task is not None and task.name in TASKS and not Path(task.folder).exists():
        run_prepare(str(task.name), int(task.seed), force=False)


def _validation(values: dict[str, float] | None) -> str:
    return ", ".join(_number(value) for value in values.values()) if values else "–"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
