"""What ``grpo-verl-ext iterate`` prints: the plan, a line for each part, a table with a row per round."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from grpo_verl_ext.iterate import checks
from grpo_verl_ext.iterate.rounds import PARTS, IterateManifest, read_manifest, run_rounds
from grpo_verl_ext.iterate.settings import IterateSettings, Round
from grpo_verl_ext.tasks.chain_sum.prepare import run_prepare
from grpo_verl_ext.tasks.chain_sum.prepared import TASKS
from grpo_verl_ext.utils.console import make_console, print_table
from grpo_verl_ext.verl_plugin.usage import own_task


def print_rounds(settings: IterateSettings) -> None:
    """Print the parts of each round, which of them are done, and verl's command line."""
    console = make_console()
    manifest = read_manifest(Path(settings.folder), asdict(settings))
    done = {record.round: record.parts for record in manifest.rounds}
    for number in range(1, settings.rounds + 1):
        this = Round(settings, number)
        console.print(f"\nround {number}, seed {this.seed}, in {this.folder}", style="bold")
        for name in PARTS:
            console.print(f"  {'done ' if name in done.get(number, {}) else 'to do'}  {name}")
        console.print("  python3 " + shlex.join(this.run().command()))


def run_iterate(settings: IterateSettings) -> None:
    """Check the settings, run all rounds, and print the table."""
    console = make_console()
    config = checks.compose_rounds(settings)
    task = own_task(config)
    if task is not None and task.name in TASKS and not Path(task.folder).exists():
        run_prepare(str(task.name), int(task.seed), force=False)
    rule = checks.checked_rule(settings, config)
    console.print(Round(settings, 1).run().ray.words)
    manifest = run_rounds(
        settings,
        config,
        rule,
        lambda this, part: console.print(f"round {this.number}: {part}; {this.folder} has the output"),
    )
    _print_table(console, manifest)
    console.print(f"{Path(settings.folder) / 'manifest.json'}")


def _print_table(console: Console, manifest: IterateManifest) -> None:
    names = ("policy before", "policy after", "new pairs", "old pairs", "held out", "RM before", "RM after")
    caption = (
        "Policy: verl's val-core metrics. RM: share of held-out pairs that the reward model orders rightly, "
        "or of steps that it classifies rightly, before and after its training in the round."
    )
    shown = Table("round", *names, title="iterative GRPO", caption=caption, caption_justify="left")
    keys = ("validation_before", "validation_after", "pairs", "replayed", "held_out")
    for record in manifest.rounds:
        found = {key: value for part in record.parts.values() for key, value in part.items()}
        cells = map(found.get, (*keys, "held_out_accuracy_before", "held_out_accuracy_after"))
        shown.add_row(str(record.round), *map(_cell, cells))
    print_table(console, shown)


def _cell(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(map(_cell, value.values())) or "–"
    return "–" if value is None else f"{value:.3f}" if isinstance(value, float) else f"{value}"
