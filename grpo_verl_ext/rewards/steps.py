"""Find steps such as ``7+2=9;`` in a response, and grade them.

`compute_score` grades from texts alone, for ``reward_model.step_label`` of ``iterate``: `weighted_sum` takes
the terms from the row's ``extra_info``, which a rollout dump does not have.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_verl_ext.rewards.rules import correctness

# Nine digits are more than any sum here has, and keep int() fast on anything a model writes.
_STEP = re.compile(r"(?<![0-9])([0-9]{1,9})\+([0-9]{1,9})=([0-9]{1,9});")


@dataclass(frozen=True)
class Step:
    """One addition ``left+right=result;`` at the characters ``start`` … ``end`` (exclusive) of a response."""

    left: int
    right: int
    result: int
    start: int
    end: int

    @property
    def holds(self) -> bool:
        """Whether the addition is right in itself."""
        return self.left + self.right == self.result


def find_steps(solution_str: str) -> list[Step]:
    """Return the additions after the first ``<reasoning>``, in order, up to ``</reasoning>`` or the end.

    Any other text between them is skipped.
    """
    before, opened, rest = solution_str.partition("<reasoning>")
    reasoning = rest.partition("</reasoning>")[0]
    offset = len(before) + len(opened)
    return [
        Step(int(found[1]), int(found[2]), int(found[3]), found.start() + offset, found.end() + offset)
        for found in _STEP.finditer(reasoning)
    ]


def grade_steps(steps: Sequence[Step], terms: Sequence[int]) -> list[bool]:
    """Return for each step whether it is right, as a step of adding up ``terms``.

    Step k is right if it adds term k+2 to the first term (k = 0) or to the result written one step before,
    right or wrong, and the addition holds. So an error costs its own step and none after it, and an addition
    that the problem does not ask for earns nothing.
    """
    lefts = [terms[0], *(step.result for step in steps)]
    rights: list[int | None] = [*terms[1:], *([None] * len(steps))]
    return [
        step.holds and (step.left, step.right) == wanted
        for step, wanted in zip(steps, zip(lefts, rights, strict=False), strict=False)
    ]


def steps_reward(solution_str: str, terms: Sequence[int]) -> float:
    """Return the share of the additions needed for ``terms`` that are right, 0 … 1; 1 for a single term."""
    wanted = len(terms) - 1
    return sum(grade_steps(find_steps(solution_str), terms)) / wanted if wanted > 0 else 1.0


def step_rewards(
    solution_str: str, terms: Sequence[int], *, answer_is_right: bool
) -> tuple[list[float], list[int]]:
    """Return a reward for every addition written, 1 if right and 0 if not, and one for the answer.

    Returns:
        The rewards, and for each the number of characters up to and including its step; the answer is the
        last step and ends with the response. An empty response has no step.
    """
    steps = find_steps(solution_str)
    rewards = [float(right) for right in grade_steps(steps, terms)]
    ends = [step.end for step in steps]
    if solution_str:
        rewards.append(float(answer_is_right))
        ends.append(len(solution_str))
    return rewards, ends


_PROBLEM = re.compile(r"([0-9](?:\+[0-9])*)=\?")


def compute_score(
    data_source: str,  # noqa: ARG001 - part of verl's signature
    solution_str: str,
    ground_truth: object,
    extra_info: Mapping[str, Any],
    **_: object,
) -> dict[str, Any]:
    """Return ``step_rewards`` and ``step_ends`` as `weighted_sum` does, and the answer's as ``score``.

    Args:
        extra_info: its ``prompt`` is a text that has the problem, such as ``3+4+2=?``.

    Raises:
        ValueError: the prompt has no problem.
    """
    found = _PROBLEM.search(extra_info["prompt"])
    if found is None:
        raise ValueError(f"the prompt {extra_info['prompt']!r} has no problem of chain_sum, such as 3+4+2=?")
    right = correctness(solution_str, ground_truth) > 0
    terms = [int(term) for term in found[1].split("+")]
    rewards, ends = step_rewards(solution_str, terms, answer_is_right=right)
    return {"score": float(right), "step_rewards": rewards, "step_ends": ends}
