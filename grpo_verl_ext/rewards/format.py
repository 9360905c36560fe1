"""Reward for the tags of the format ``<reasoning>…</reasoning><answer>…</answer>``."""

from __future__ import annotations

TAGS = ("<reasoning>", "</reasoning>", "<answer>", "</answer>")
TAG_REWARD = 0.2


def format_reward(solution_str: str, _ground_truth: object = None) -> float:
    """Return 0.2 for each of the four tags that occurs at least once, 0.8 at most; order does not count.

    The ground truth is accepted, as by any rule, and not used.
    """
    return TAG_REWARD * sum(tag in solution_str for tag in TAGS)
