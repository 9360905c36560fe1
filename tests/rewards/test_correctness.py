"""The correctness reward: 2.0 to the letter, 1.5 as a number, else 0, whatever the text."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from grpo_verl_ext.rewards.correctness import answer_of, correctness


def said(answer: str) -> str:
    return f"<reasoning>7+7=14;</reasoning><answer>{answer}</answer>"


@pytest.mark.parametrize("answer", ["14", " 14 ", "\n14\n"])
def test_the_wanted_answer_to_the_letter_earns_two(answer):
    assert correctness(said(answer), "14") == 2.0


@pytest.mark.parametrize("answer", ["14.0", "014", "+14", "1.4e1", "140e-1", "14.", "0,014"])
def test_the_same_number_written_differently_earns_one_and_a_half(answer):
    assert correctness(said(answer), "14") == 1.5


NO_NUMBERS = ["", "1 4", "fourteen", "nan", "inf", "e14", ".", "14;", "14,", "0x0e", "1_4"]
OTHER_NUMBERS = ["15", "-14", "1e999", "1e99999"]
# Arabic-Indic and full-width digits, a superscript, a Roman numeral
OTHER_DIGITS = ["١٤", "１４", "1⁴", "Ⅹ"]


@pytest.mark.parametrize("answer", NO_NUMBERS + OTHER_NUMBERS + OTHER_DIGITS)
def test_anything_else_earns_nothing(answer):
    assert correctness(said(answer), "14") == 0.0


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer>1</answer><answer>2</answer>", "2"),
        ("<answer>1<answer>2</answer>", "2"),
        ("<answer>1</answer>2</answer>", "1"),
        ("<answer>1</answer><answer>2", None),
        ("</answer><answer>", None),
        ("<answer>14", None),
        ("14</answer>", None),
        ("14", None),
        ("", None),
    ],
)
def test_the_last_opened_answer_counts_and_must_be_closed(text, answer):
    assert answer_of(text) == answer


@pytest.mark.parametrize(
    ("ground_truth", "reward"),
    [(14, 2.0), (14.0, 1.5), ("14.00", 1.5), ("1,400e-2", 1.5), (None, 0.0), ("", 0.0)],
)
def test_the_ground_truth_may_be_anything_with_a_text(ground_truth, reward):
    assert correctness(said("14"), ground_truth) == reward


def test_large_numbers_are_compared_exactly():
    assert correctness(said("1e40"), "1" + "0" * 40) == 1.5
    assert correctness(said("1e40"), "1" + "0" * 39 + "1") == 0.0


def test_words_can_be_right_to_the_letter_only():
    assert correctness(said("blue"), "blue") == 2.0
    assert correctness(said("Blue"), "blue") == 0.0


texts = st.text() | st.text("0123456789+-.,eEnaif٣⁴ ", max_size=30).map(said)


@given(texts, st.text() | st.integers() | st.floats() | st.none())
@example(said("e5"), "5")
@example(said("1" * 5000), "1")
@example(said("9e9999"), "9e9999")
def test_any_text_scores_and_never_raises(text, ground_truth):
    assert correctness(text, ground_truth) in (0.0, 1.5, 2.0)


@given(st.integers())
def test_an_integer_written_out_is_to_the_letter_and_with_a_point_is_equal(number):
    assert correctness(said(str(number)), number) == 2.0
    assert correctness(said(f"{number}.0"), number) == 1.5
    assert correctness(said(str(number + 1)), number) == 0.0
