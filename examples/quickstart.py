"""Train the embedded task on verl's real trainer and show what was learned; started by quickstart.sh.

All files of a run are in one folder: ``attempt-N.jsonl`` (verl's metrics), ``attempt-N.log`` (verl's output),
``checkpoints/``, and at the end ``learning_curve.png`` and ``summary.json``. The lock ``<folder>.lock`` next
to it keeps a second quick start out of the folder.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from quickstart_arguments import another, check_out, parse_arguments
from quickstart_stages import EXPECTED_SECONDS, Stages
from quickstart_summary import (
    TRAIN_SCORE,
    Summary,
    accuracy_by_step,
    draw_learning_curve,
    sentence,
    summarize,
    write_summary,
)
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from grpo_verl_ext.runs.child_process import ProcessFailedError
from grpo_verl_ext.runs.metrics import Metrics
from grpo_verl_ext.runs.verl_run import VerlRun
from grpo_verl_ext.utils.files import locked


def main() -> None:
    options, overrides = parse_arguments()
    out = check_out(options.out)
    try:
        with alone_in(out):
            summary = prepare_and_train(options, overrides, out)
    except KeyboardInterrupt:
        sys.exit("\nInterrupted. Run the same command again to resume from the last checkpoint.")
    except ProcessFailedError as error:
        sys.exit(str(error))
    print(f"Done.\n\n{sentence(summary)}\n{out / 'learning_curve.png'}")


def prepare_and_train(options: argparse.Namespace, overrides: list[str], out: Path) -> Summary:
    """Run all stages but the installation, and write their results to ``out``."""
    stages = Stages(options.started)
    prepare_task(options.seed, stages)
    settings = " ".join([f"algo={options.algo} seed={options.seed} steps={options.steps}", *overrides])
    open_run_folder(out, settings)
    metrics = train(options, overrides, out, stages).metrics()
    draw_learning_curve(metrics, out / "learning_curve.png", options.algo)
    summary = summarize(metrics, algo=options.algo, seed=options.seed, seconds=stages.seconds())
    write_summary(summary, out / "summary.json")
    return summary


@contextmanager
def alone_in(out: Path) -> Iterator[None]:
    """Hold the lock ``<out>.lock``, with our process number in it; exit if another quick start holds it.

    The lock is next to the folder because the folder of an earlier run is renamed. The kernel releases it
    however its process ends.
    """
    lock = Path(f"{out}.lock")
    with locked(out, on_wait=lambda: sys.exit(in_use(out, lock))):
        lock.write_text(f"{os.getpid()}\n")
        yield


def in_use(out: Path, lock: Path) -> str:
    return (
        f"quickstart.sh: --out is {out}, where another quick start is running (process "
        f"{lock.read_text().strip() or 'unknown'}); valid is a folder that none is using. Wait until it has "
        f"ended, or type the same command with --out {another(out)}"
    )


def prepare_task(seed: int, stages: Stages) -> None:
    """Make data, tokenizer and starting model, unless the cache has them."""
    stages.begin(
        "prepare",
        f"Preparing the task chain_sum, seed {seed}, and its starting model",
        EXPECTED_SECONDS["prepare"],
        ", a few seconds if they are there already",
    )
    program = str(Path(sys.executable).with_name("grpo-verl-ext"))
    command = [program, "prepare", "chain_sum", "--seed", str(seed)]
    if subprocess.run(command, check=False).returncode != 0:
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


def train(options: argparse.Namespace, overrides: list[str], out: Path, stages: Stages) -> VerlRun:
    """Run verl's trainer in a process of its own, with a progress bar made from its metrics."""
    settings = (
        *(f"+algo={options.algo}", "+platform=cpu", "+task=chain_sum", f"task.seed={options.seed}"),
        *("trainer.test_freq=7", "trainer.save_freq=7", "trainer.max_actor_ckpt_to_keep=1"),
        # half of the test prompts: a standard error of 0.03
        "data.val_max_samples=256",
    )
    run = VerlRun(out, [*settings, *overrides], options.steps)
    new_metrics = run.next_attempt().with_suffix(".jsonl")
    left = max(0, options.steps - last_checkpoint(run))
    what = "Starting verl (Ray, actor and rollout) and testing the model"
    stages.begin("start", what, EXPECTED_SECONDS["start"])
    print(f"{' '.join(run.command())}\n{run.ray.words}\nIts output goes to {out}", flush=True)
    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    with Progress(*columns) as progress:
        bar = progress.add_task("starting", total=options.steps)

        def show(metrics: Metrics) -> None:
            # The metrics of earlier attempts are there before verl has started.
            if new_metrics.exists() and new_metrics.stat().st_size > 0:
                what = f"Training with {options.algo}, {left} steps to go"
                stages.begin("train", what, left * EXPECTED_SECONDS["step"])
                progress.update(bar, completed=max(metrics, default=0), **described(metrics))

        run.go(show)
    stages.end()
    return run


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
    return {"description": f"training{score}" + f", test accuracy {accuracy[-1]:.3f}" * bool(accuracy)}


if __name__ == "__main__":
    main()
