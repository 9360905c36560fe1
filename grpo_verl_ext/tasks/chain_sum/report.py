"""``prepare`` with a progress bar and a closing report on the terminal."""

from __future__ import annotations

import transformers
from rich.console import Console
from rich.progress import Progress

from grpo_verl_ext.tasks.chain_sum import prepared
from grpo_verl_ext.tasks.chain_sum.prepare import Prepared, prepare


def prepare_and_report(seed: int, *, force: bool) -> None:
    """Make the task of ``seed`` in the user's cache folder and say what was made, where, and how good it is.

    Raises:
        PreparedTaskError: see ``prepare``.
    """
    transformers.utils.logging.disable_progress_bar()
    # Paths stay whole, so that they can be copied.
    console = Console(soft_wrap=True, highlight=False)
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("warm start", total=None)
        outcome = prepare(
            seed,
            force=force,
            on_step=lambda done, total: progress.update(bar, completed=done, total=total),
            on_wait=lambda: console.print("waiting: another process is preparing the same folder"),
        )
    console.print(_summary(outcome), markup=False)


def _summary(outcome: Prepared) -> str:
    manifest, folder = outcome.manifest, outcome.folder
    lines = [
        f"made in {manifest.seconds:.0f} s: {folder}"
        if outcome.made
        else f"already there, nothing to do: {folder}",
        f"  {prepared.TRAIN}  {manifest.settings['train_problems']} prompts",
        f"  {prepared.TEST}   {manifest.settings['test_problems']} prompts, none of them a training prompt",
        f"  {prepared.MODEL}/         sampled accuracy {manifest.sampled_accuracy:.3f} "
        f"on {manifest.measured_prompts} test prompts",
    ]
    if outcome.moved_aside:
        lines.append(f"what was there before is kept in {outcome.moved_aside}")
    return "\n".join(lines)
