"""Test the format reward: 0.2 for each of four tags."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_verl_ext.rewards.rules import TAGS, format_reward


@pytest.mark.parametrize("present", [c for k in range(5) for c in combinations(TAGS, k)])
def test_a_fifth_for_each_tag_present(present):
    assert format_reward("x".join(present)) == pytest.approx(0.2 * len(present), abs=1e-15)


def test_a_tag_counts_once_and_in_any_place():
    assert format_reward("</answer>" * 9 + "<reasoning>") == pytest.approx(0.4, abs=1e-15)


@pytest.mark.parametrize("text", ["<Answer>", "< answer>", "answer", "<answer", "＜answer＞"])
def test_almost_a_tag_is_none(text):
    assert format_reward(text) == 0.0


@given(st.text())
def test_any_text_scores_between_nothing_and_four_fifths(text):
    assert 0.0 <= format_reward(text) <= 0.8
