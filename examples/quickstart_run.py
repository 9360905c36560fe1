"""Run an example: hold its folder, prepare its task, and train it with a progress bar.

All files of a run are in one folder: ``attempt-N.jsonl`` (verl's metrics), ``attempt-N.log`` (verl's output),
``checkpoints/``, and at the end ``learning_curve.png`` and ``summary.json``. The lock ``<folder>.lock`` next
to it keeps a second run out of the folder.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from quickstart_arguments import QUICKSTART, Example, another, check_out, parse_arguments
from quickstart_stages import Stages
from quickstart_summary import TRAIN_SCORE, accuracy_by_step
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from grpo_verl_ext.runs.child_process import ProcessFailedError, run_to_its_end
from grpo_verl_ext.runs.metrics import CorruptMetricsError, Metrics
from grpo_verl_ext.runs.verl_run import VerlRun
from grpo_verl_ext.utils.console import ending, interruptible, one_message, print_any_character
from grpo_verl_ext.utils.files import locked


def run_example(
    example: Example, prepare_and_train: Callable[[argparse.Namespace, list[str], Path], str]
) -> None:
    """Read the command line, hold the run folder, and print what ``prepare_and_train`` returns."""
    print_any_character()
    options, overrides = parse_arguments(example)
    out = check_out(options.out, example)
    errors = (ProcessFailedError, CorruptMetricsError)
    with (
        interruptible(),
        one_message(example.script, *errors, elsewhere="--out <another folder>"),
        alone_in(out, example),
    ):
        report = prepare_and_train(options, overrides, out)
    print(f"Done.\n\n{report}")


@contextmanager
def alone_in(out: Path, example: Example = QUICKSTART) -> Iterator[None]:
    """Hold the lock ``<out>.lock``, with our process number in it; exit if another run holds it.

    The lock is next to the folder because the folder of an earlier run is renamed. The kernel releases it
    however its process ends.
    """
    lock = Path(f"{out}.lock")
    with locked(out, on_wait=lambda: sys.exit(in_use(out, lock, example))):
        lock.write_text(f"{os.getpid()}\n")
        yield


def in_use(out: Path, lock: Path, example: Example) -> str:
    return (
        f"{example.script}: --out is {out}, where another {example.words} is running (process "
        f"{lock.read_text().strip() or 'unknown'}); valid is a folder that none is using. Wait until it has "
        f"ended, or type the same command with --out {another(out, example)}"
    )


OURS = str(Path(sys.executable).with_name("grpo-verl-ext"))


def prepare(*command: str) -> None:
    """Run a command that makes data or a model and does nothing if the cache has it; exit if it fails."""
    with tempfile.TemporaryFile("w+") as said:  # shown at the end: after Ctrl-C both would say how to resume
        status = run_to_its_end([*command], stderr=said)
        said.seek(0)
        sys.stderr.write(said.read())
    if status < 0:
        sys.exit(f"{' '.join(command)} ended with {ending(status)}")
    if status > 0:
        sys.exit(1)  # the command has printed why


def open_run_folder(out: Path, settings: str) -> None:
    """Resume an unfinished run of the same settings; move any other run aside."""
    marker = out / "settings"
    same = marker.is_file() and marker.read_text() == settings
    if marker.exists() and ((out / "summary.json").exists() or not same):
        aside = out.with_name(f"{out.name}-{datetime.now():%Y%m%d-%H%M%S}")
        out.rename(aside)
        print(f"An earlier run was moved to {aside}")
    out.mkdir(parents=True, exist_ok=True)
    marker.write_text(settings)


def settings_of(options: argparse.Namespace, overrides: list[str]) -> str:
    """Return what must be the same for a run to be resumed."""
    return " ".join([f"algo={options.algo} seed={options.seed} steps={options.steps}", *overrides])


def go(
    run: VerlRun,
    what: str,
    stages: Stages,
    seconds: Mapping[str, float],
    on_metrics: Callable[[Metrics], None] = lambda _: None,
) -> None:
    """Run verl's trainer in a process of its own, with a progress bar made from its metrics.

    Args:
        what: what the training is called while it runs.
        seconds: expected ones of ``start`` and of a ``step``.
        on_metrics: also called twice a second.
    """
    new_metrics = run.next_attempt().with_suffix(".jsonl")
    left = max(0, run.steps - last_checkpoint(run))
    stages.begin("start", "Starting verl (Ray, actor and rollout) and testing the model", seconds["start"])
    print(f"{' '.join(run.command())}\n{run.ray.words}\nIts output goes to {run.folder}", flush=True)
    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    with Progress(*columns) as progress:
        bar = progress.add_task("starting", total=run.steps)

        def show(metrics: Metrics) -> None:
            on_metrics(metrics)
            # The metrics of earlier attempts are there before verl has started.
            if new_metrics.exists() and new_metrics.stat().st_size > 0:
                stages.begin("train", f"Training with {what}, {left} steps to go", left * seconds["step"])
                progress.update(bar, completed=max(metrics, default=0), **described(metrics))

        run.go(show)
    stages.end()


def last_checkpoint(run: VerlRun) -> int:
    """Return the step from which verl resumes; 0 in a new run."""
    note = run.checkpoints / "latest_checkpointed_iteration.txt"
    return int(note.read_text()) if note.exists() else 0


def described(metrics: Metrics) -> dict[str, str]:
    """Return the progress bar's description, once there are metrics."""
    if not metrics:
        return {}
    accuracy = list(accuracy_by_step(metrics).values())
    last = metrics[max(metrics)]
    score = f", score {last[TRAIN_SCORE]:.2f}" if TRAIN_SCORE in last else ""
    measured = f", test accuracy {accuracy[-1]:.3f}" if accuracy else ""
    return {"description": f"training{score}{measured}"}
