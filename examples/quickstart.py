"""Train the embedded task on verl's real trainer and show what was learned; started by quickstart.sh.

All files of a run are in one folder: ``attempt-N.jsonl`` (verl's metrics), ``attempt-N.log`` (verl's output),
``checkpoints/``, and at the end ``learning_curve.png`` and ``summary.json``. The lock ``<folder>.lock`` next
to it keeps a second run out of the folder.
"""

import argparse
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TypedDict

from quickstart_arguments import (
    EXPECTED_SECONDS,
    QUICKSTART,
    Example,
    Stages,
    another,
    check_out,
    parse_arguments,
)
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from grpo_verl_ext.runs.child_process import ProcessFailedError, run_to_its_end
from grpo_verl_ext.runs.verl_run import CorruptFileError, Metrics, VerlRun
from grpo_verl_ext.utils.console import ending, interruptible, one_message, print_any_character
from grpo_verl_ext.utils.files import locked, write_whole

OURS = str(Path(sys.executable).with_name("grpo-verl-ext"))
TEST_ACCURACY = re.compile("val-core/[^/]+/acc/mean@1")
TRAIN_SCORE = "critic/score/mean"


def main() -> None:
    run_example(QUICKSTART, prepare_and_train)


def prepare_and_train(options: argparse.Namespace, overrides: list[str], out: Path) -> str:
    """Run all stages but the installation, write their results to ``out``, and return a report."""
    stages = Stages(options.started)
    stages.begin(
        "prepare",
        f"Preparing the task chain_sum, seed {options.seed}, and its starting model",
        EXPECTED_SECONDS["prepare"],
        ", a few seconds if they are there already",
    )
    prepare(OURS, "prepare", "chain_sum", "--seed", str(options.seed))
    open_run_folder(out, settings_of(options, overrides))
    metrics = train(options, overrides, out, stages).metrics()
    curve = out / "learning_curve.png"
    draw_learning_curve(metrics, curve, f"chain_sum, {options.algo}, on the CPU platform")
    summary = summarize(metrics, algo=options.algo, seed=options.seed, seconds=stages.seconds())
    write_summary(summary, out / "summary.json")
    return f"{sentence(summary)}\n{curve}"


def train(options: argparse.Namespace, overrides: list[str], out: Path, stages: Stages) -> VerlRun:
    settings = (
        *(f"+algo@_global_={options.algo}", "+platform=cpu", "+task=chain_sum", f"task.seed={options.seed}"),
        *("trainer.test_freq=7", "trainer.save_freq=7", "trainer.max_actor_ckpt_to_keep=1"),
        # half of the test prompts: a standard error of 0.03
        "data.val_max_samples=256",
    )
    run = VerlRun(out, [*settings, *overrides], options.steps)
    go(run, options.algo, stages, EXPECTED_SECONDS)
    return run


def run_example(
    example: Example, prepare_and_train: Callable[[argparse.Namespace, list[str], Path], str]
) -> None:
    """Read the command line, hold the run folder, and print what ``prepare_and_train`` returns."""
    print_any_character()
    options, overrides = parse_arguments(example)
    out = check_out(options.out, example)
    errors = (ProcessFailedError, CorruptFileError)
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


class Summary(TypedDict):
    """The content of ``summary.json``.

    Attributes:
        accuracy_before: test accuracy of the starting model; None if verl did not test it.
        accuracy_after: test accuracy after the last step; None if verl did not test then.
    """

    accuracy_before: float | None
    accuracy_after: float | None
    steps: int
    seconds: float
    algo: str
    seed: int
    test_accuracy_by_step: dict[int, float]


def summarize(metrics: Metrics, *, algo: str, seed: int, seconds: float) -> Summary:
    """Return the summary of a run.

    Args:
        metrics: those of all attempts, since a resumed run was tested before training in its first attempt.
    """
    tested = accuracy_by_step(metrics)
    steps = max(metrics, default=0)
    return Summary(
        accuracy_before=tested.get(0),
        accuracy_after=tested.get(steps) if steps else None,
        steps=steps,
        seconds=seconds,
        algo=algo,
        seed=seed,
        test_accuracy_by_step=tested,
    )


def accuracy_by_step(metrics: Metrics) -> dict[int, float]:
    """Return the test accuracy by step, in the order of steps; an example has one task."""
    return {
        step: values[name]
        for step, values in sorted(metrics.items())
        for name in values
        if TEST_ACCURACY.fullmatch(name)
    }


def sentence(summary: Summary) -> str:
    """Return a sentence with the known accuracies, and why one is missing."""
    before, after = summary["accuracy_before"], summary["accuracy_after"]
    training = f"{summary['steps']} steps of {summary['algo']}"
    known = [] if before is None else [f"{before:.3f} before"]
    known += [] if after is None else [f"{after:.3f} after {training}"]
    said = (
        f"Test accuracy, sampled at temperature 1: {', '.join(known) or 'none'} "
        f"(seed {summary['seed']}, {summary['seconds']:.0f} s in all)."
    )
    if before is None:
        said += "\nThere is no accuracy before training: step 0 was not tested (trainer.val_before_train)."
    if after is None:
        said += f"\nThere is no accuracy after {training}: {last_test(summary)} (trainer.test_freq)."
    return said


def last_test(summary: Summary) -> str:
    later = [step for step in summary["test_accuracy_by_step"] if step > 0]
    if not later:
        return "no step of the training was tested"
    return f"the last test was after step {later[-1]}, {summary['test_accuracy_by_step'][later[-1]]:.3f}"


def write_summary(summary: Mapping[str, object], file: Path) -> None:
    write_whole(file, json.dumps(summary, indent=2, ensure_ascii=False) + "\n")


def draw_learning_curve(metrics: Metrics, file: Path, title: str) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    tested = accuracy_by_step(metrics)
    figure, accuracy = plt.subplots(figsize=(7, 4), layout="constrained")
    accuracy.plot(list(tested), list(tested.values()), "o-", color="#0072B2", label="test accuracy")
    accuracy.set(xlabel="step", ylabel="accuracy, sampled at temperature 1", ylim=(0, 1))
    accuracy.xaxis.get_major_locator().set_params(integer=True)
    accuracy.set_title(title)
    score = accuracy.twinx()
    steps = sorted(step for step, m in metrics.items() if TRAIN_SCORE in m)
    score.plot(steps, [metrics[s][TRAIN_SCORE] for s in steps], "--", color="#D55E00", label="training score")
    score.set_ylabel("mean score of the training batch")
    figure.legend(loc="outside lower center", ncols=2)
    figure.savefig(file, dpi=150)
    plt.close(figure)


if __name__ == "__main__":
    main()
