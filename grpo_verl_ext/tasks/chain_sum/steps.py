"""Grade the steps of the embedded task from texts alone, for ``reward_model.step_label`` of ``iterate``.

`weighted_sum` takes the terms from the row's ``extra_info``, which a rollout dump does not have.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from grpo_verl_ext.rewards.rules import correctness
from grpo_verl_ext.rewards.steps import step_rewards

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
