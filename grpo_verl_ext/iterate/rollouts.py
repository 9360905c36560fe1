"""Responses of a round, as verl's ``trainer.rollout_data_dir`` has them, labelled by rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from grpo_verl_ext.iterate.settings import IterateError
from grpo_verl_ext.runs.dumps import CorruptDumpError, dump_file, read_dump

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
    files = {step: dump_file(folder, step) for step in range(1, steps + 1)}
    missing = [step for step, file in files.items() if not file.is_file()]
    if len(missing) == steps:
        raise IterateError(
            f"{folder} has no rollouts of steps 1 … {steps}; was trainer.rollout_data_dir overridden?"
        )
    return [
        sample for step, file in files.items() if step not in missing for sample in _samples(file, step, rule)
    ], missing


def _samples(file: Path, step: int, rule: Rule) -> list[Sample]:
    try:
        responses = read_dump(file)
    except CorruptDumpError as error:
        raise IterateError(str(error)) from error
    return [
        Sample(response.prompt, response.output, label_of(rule(response.output, response.truth)), step)
        for response in responses
    ]


def label_of(result: object) -> float:
    """The number in what a rule returned."""
    value = result["score"] if isinstance(result, dict) else result
    if not isinstance(value, int | float):
        raise IterateError(
            f"reward_model.label returned {result!r}; valid is a number, or {{'score': number}}"
        )
    return float(value)
