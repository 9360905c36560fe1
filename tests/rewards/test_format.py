"""Test the format reward: 0.2 for each of four tags."""

from itertools import combinations

import pytest

from grpo_verl_ext.rewards.rules import TAGS, format_reward


@pytest.mark.parametrize("present", [c for k in range(5) for c in combinations(TAGS, k)])
def test_a_fifth_for_each_tag_once_in_any_place(present):
    assert format_reward("x".join(reversed(2 * present))) == pytest.approx(0.2 * len(present), abs=1e-15)


@pytest.mark.parametrize("text", ["<Answer>", "< answer>", "answer", "<answer", "＜answer＞"])
def test_almost_a_tag_is_none(text):
    assert format_reward(text) == 0.0
