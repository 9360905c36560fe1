"""Summarize a training of SmolLM2: accuracy with intervals, time, memory, and responses before and after."""

from dataclasses import asdict, dataclass
from typing import Any

from quickstart import TRAIN_SCORE, accuracy_by_step
from scipy.stats import binomtest

from grpo_verl_ext.ablation.measures import compare
from grpo_verl_ext.runs.verl_run import Response, VerlRun, read_dump

CONFIDENCE = 0.95
RESPONSES = 12
"""Number of test prompts whose responses are shown."""
STEP_SECONDS = "timing_s/step"


@dataclass(frozen=True)
class Accuracy:
    """Share of prompts answered right, with Wilson's 95 % interval."""

    right: int
    prompts: int
    share: float
    low: float
    high: float


def summarize(run: VerlRun, *, peak_memory_bytes: int, **more: Any) -> dict[str, Any]:
    """Return the content of ``summary.json``, from the first test to that of the last step.

    ``difference`` is after − before, paired by prompt, with the 95 % interval of Student's t.

    Args:
        more: further entries.
    """
    metrics = run.metrics()
    before, after = (tested(run, step) for step in (0, run.steps))
    gain = compare(*({n: row.score for n, row in enumerate(rows)} for rows in (after, before)))
    assert gain is not None
    steps = {step: values for step, values in sorted(metrics.items()) if STEP_SECONDS in values}
    return {
        **more,
        "steps": run.steps,
        "before": asdict(accuracy(before)),
        "after": asdict(accuracy(after)),
        "difference": {"mean": gain.difference, "low": gain.low, "high": gain.high},
        "test_accuracy_by_step": accuracy_by_step(metrics),
        "training_score_by_step": {step: values[TRAIN_SCORE] for step, values in steps.items()},
        "mixed_groups_by_step": {step: mixed_groups(run, step) for step in steps},
        "training_seconds": round(sum(values[STEP_SECONDS] for values in steps.values()), 1),
        "peak_memory_gib": round(peak_memory_bytes / 2**30, 2),
        "responses": [_both(*pair) for pair in zip(before[:RESPONSES], after[:RESPONSES], strict=True)],
    }


def tested(run: VerlRun, step: int) -> list[Response]:
    """Return the responses of the test after a step, one a prompt, in the order of their prompts."""
    return sorted(read_dump(run.validation / f"{step}.jsonl"), key=lambda row: row.prompt)


def mixed_groups(run: VerlRun, step: int) -> float:
    """Return the share of a step's prompts with right and wrong responses; the others teach GRPO nothing."""
    scores: dict[str, set[float]] = {}
    for row in read_dump(run.rollouts / f"{step}.jsonl"):
        scores.setdefault(row.prompt_id, set()).add(row.score)
    return sum(len(each) > 1 for each in scores.values()) / len(scores)


def accuracy(rows: list[Response]) -> Accuracy:
    right = sum(row.score == 1.0 for row in rows)
    found = binomtest(right, len(rows)).proportion_ci(CONFIDENCE, method="wilson")
    return Accuracy(right, len(rows), right / len(rows), float(found.low), float(found.high))


def sentences(summary: dict[str, Any]) -> str:
    """Return the summary in words, with the responses as a table."""
    before, after, gain = (summary[key] for key in ("before", "after", "difference"))
    lines = [
        f"Test accuracy on {after['prompts']} held-out prompts, sampled once at temperature 1, with 95 % "
        f"intervals (seed {summary['seed']}):",
        f"  before {_interval(before['share'], before)}",
        f"  after {summary['steps']} steps of {summary['algo']} {_interval(after['share'], after)}",
        f"  difference, paired by prompt, {_interval(gain['mean'], gain)}",
        f"Groups with right and wrong responses: {_first_and_last(summary['mixed_groups_by_step'])}",
        f"{summary['training_seconds'] / 60:.0f} minutes of training, {summary['seconds'] / 60:.0f} since "
        f"this command began; peak memory {summary['peak_memory_gib']} GiB.",
        "",
        _row("prompt", "wanted", "before", "after"),
    ]
    for_each = (
        (row["prompt"], row["wanted"], repr(row["before"]), repr(row["after"]))
        for row in summary["responses"]
    )
    return "\n".join([*lines, *(_row(*cells) for cells in for_each)])


def _first_and_last(shares: dict[int, float]) -> str:
    (first, before), (last, after) = (pick(shares.items()) for pick in (min, max))
    return f"{before:.2f} in step {first}, {after:.2f} in step {last}"


def _row(prompt: str, wanted: str, before: str, after: str) -> str:
    return f"{prompt:<12} {wanted:<8} {before:<20} {after}"


def _interval(value: float, bounds: dict[str, float | None]) -> str:
    if bounds["low"] is None or bounds["high"] is None:
        return f"{value:.3f}"
    return f"{value:.3f} [{bounds['low']:.3f}, {bounds['high']:.3f}]"


def _both(before: Response, after: Response) -> dict[str, object]:
    assert before.prompt == after.prompt
    asked = before.prompt.rpartition("\n")[2]
    return {"prompt": asked, "wanted": before.truth, "before": before.output, "after": after.output}
