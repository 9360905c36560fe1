"""Responses of a round, as verl's ``trainer.rollout_data_dir`` has them, labelled by rule."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from grpo_verl_ext.iterate.settings import IterateError

Rule = Callable[[str, object], object]
"""From a response and its ground truth to a number, or to a dictionary with ``score``, as verl's rules."""


@dataclass(frozen=True)
class Sample:
    """One response. Texts are without special tokens, as verl writes them."""

    prompt: str
    response: str
    label: float
    step: int


def read_rollouts(folder: Path, steps: int, rule: Rule) -> tuple[list[Sample], list[int]]:
    """Responses in the order in which verl wrote them, and the steps whose file is not there.

    A file is missing where a training was killed between its checkpoint and its dump.

    Raises:
        IterateError: a line is no record of verl's, or no step has a file.
    """
    files = {step: folder / f"{step}.jsonl" for step in range(1, steps + 1)}
    missing = [step for step, file in files.items() if not file.is_file()]
    if len(missing) == steps:
        raise IterateError(
            f"{folder} has no rollouts of steps 1 … {steps}; was trainer.rollout_data_dir overridden?"
        )
    return [
        sample for step, file in files.items() if step not in missing for sample in _samples(file, step, rule)
    ], missing


def _samples(file: Path, step: int, rule: Rule) -> list[Sample]:
    samples = []
    # Not splitlines(): verl leaves the Unicode line separators of a response as they are.
    for number, line in enumerate(file.read_text(encoding="utf-8").rstrip("\n").split("\n"), start=1):
        try:
            record = json.loads(line)
            prompt, response, truth = str(record["input"]), str(record["output"]), record["gts"]
        except (ValueError, KeyError, TypeError) as error:
            raise IterateError(
                f"{file}, line {number}, is no rollout of verl's ({error!r}). It was left in place; move it "
                f"away to go on without this step"
            ) from error
        samples.append(Sample(prompt, response, label_of(rule(response, truth)), step))
    return samples


def label_of(result: object) -> float:
    """The number in what a rule returned."""
    value = result["score"] if isinstance(result, dict) else result
    if not isinstance(value, int | float):
        raise IterateError(
            f"reward_model.label returned {result!r}; valid is a number, or {{'score': number}}"
        )
    return float(value)
