"""Reward function for verl: 1 if the whole response is the wanted text, else 0.

For prompts that ask for the answer alone. In verl's configuration::

    reward:
      custom_reward_function:
        path: pkg://grpo_verl_ext.rewards.whole_response
        name: compute_score
"""

from __future__ import annotations


def compute_score(
    data_source: str,  # noqa: ARG001 - part of verl's signature
    solution_str: str,
    ground_truth: object,
    extra_info: object = None,  # noqa: ARG001
    **_: object,
) -> dict[str, float]:
    """Compare the response, without white space around it, with the ground truth.

    Returns:
        ``score`` and ``acc``: 1.0 if they are the same text, else 0.0.
    """
    right = float(solution_str.strip() == str(ground_truth))
    return {"score": right, "acc": right}
