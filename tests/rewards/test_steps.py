"""Test that steps are found and graded by rule."""

import re

from hypothesis import given
from hypothesis import strategies as st

from grpo_verl_ext.rewards.steps import step_rewards, steps_reward

RIGHT = "<reasoning>3+4=7;7+2=9;</reasoning><answer>9</answer>"


def graded_steps(text: str, terms: list[int]) -> list[tuple[bool, int]]:
    """Whether each addition is right, and its end; the answer is the last step."""
    rewards, ends = step_rewards(text, terms, answer_is_right=False)
    return [*zip(map(bool, rewards[:-1]), ends[:-1], strict=True)]


def test_steps_come_with_the_characters_up_to_their_end():
    # "<reasoning>" has 11 characters and each of these steps 6
    assert graded_steps(RIGHT, [3, 4, 2]) == [(True, 17), (True, 23)]


def test_steps_outside_the_reasoning_do_not_count():
    assert graded_steps("1+1=2;" + RIGHT + "1+1=2;", [3, 4, 2]) == [(True, 23), (True, 29)]
    assert graded_steps("1+1=2;", [1, 1]) == []
    assert graded_steps("<reasoning>3+4=7;7+2=9;9+", [3, 4, 2]) == [(True, 17), (True, 23)]


def test_what_is_no_step_is_passed_over():
    reasoning = "3+4=7 ;3+=7;-3+4=7;a3+4=7;3+4=x;1234567890+1=2;٣+4=7;"
    # after a sign or a letter an addition is still one; ten digits are too many
    ends = [reasoning.index(each) + len(each) for each in ("-3+4=7;", "a3+4=7;")]
    assert [end - 11 for _, end in graded_steps(f"<reasoning>{reasoning}", [3, 4])] == ends


def graded(reasoning: str, *terms: int) -> list[bool]:
    return [right for right, _ in graded_steps(f"<reasoning>{reasoning}</reasoning>", terms)]


def test_a_slip_that_is_carried_on_costs_its_own_step_only():
    assert graded("3+4=8;8+2=10;10+5=15;", 3, 4, 2, 5) == [False, True, True]


def test_additions_that_hold_but_were_not_asked_for_are_wrong():
    assert graded("1+1=2;2+5=7;", 3, 4, 2) == [False, False]
    # the second does not start from the result before it
    assert graded("3+4=7;9+2=11;", 3, 4, 2) == [True, False]
    assert graded("3+4=7;7+0=7;7+0=7;", 3, 4) == [True, False, False]


def test_the_reward_is_the_share_of_the_steps_asked_for():
    assert steps_reward(RIGHT, [3, 4, 2]) == 1.0
    assert steps_reward("<reasoning>3+4=7;", [3, 4, 2]) == 0.5
    assert steps_reward("<reasoning>3+4=6;6+2=8;8+1=9;", [3, 4, 2, 1]) == 2 / 3
    assert steps_reward("", [3, 4, 2]) == 0.0
    assert steps_reward("", [3]) == 1.0


@given(
    st.text() | st.text("0123456789+=;<>/reasoning", max_size=80).map("<reasoning>".__add__),
    st.lists(st.integers(0, 9), min_size=1),
)
def test_any_text_scores_and_its_steps_are_where_they_say(text, terms):
    assert 0.0 <= steps_reward(text, terms) <= 1.0
    assert all(re.search(r"\d\+\d+=\d+;$", text[:end]) for _, end in graded_steps(text, terms))


def test_every_step_and_the_answer_are_rewarded_where_they_end():
    wrong = "<reasoning>3+4=7;7+2=8;</reasoning><answer>8</answer>"
    assert step_rewards(wrong, [3, 4, 2], answer_is_right=False) == ([1.0, 0.0, 0.0], [17, 23, len(wrong)])
    assert step_rewards("<answer>7</answer>", [3, 4], answer_is_right=True) == ([1.0], [18])
    assert step_rewards("", [3, 4], answer_is_right=False) == ([], [])
