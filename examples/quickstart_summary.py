"""Summarize a quick start: ``summary.json``, one sentence with the accuracies, and the learning curve."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

from grpo_verl_ext.runs.metrics import Metrics
from grpo_verl_ext.utils.files import write_whole

TEST_ACCURACY = re.compile("val-core/[^/]+/acc/mean@1")
TRAIN_SCORE = "critic/score/mean"


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
