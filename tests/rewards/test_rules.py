"""Test the rewards by rule: 2.0 for the exact text, 1.5 for an equal number; 0.2 for each of four tags."""

import unicodedata
from itertools import combinations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from grpo_verl_ext.rewards.rules import TAGS, answer_of, correctness, format_reward, number_in


def said(answer: str) -> str:
    return f"<reasoning>7+7=14;</reasoning><answer>{answer}</answer>"


@pytest.mark.parametrize(("answer", "wanted"), [("14", "14"), ("\n14 ", "14"), ("blue", "blue")])
def test_the_wanted_answer_to_the_letter_earns_two(answer, wanted):
    assert correctness(said(answer), wanted) == 2.0
    assert correctness(said(answer.upper()), "blue") == 0.0


WRITTEN = ["14.0", "014", "+14", "1.4e1", "140e-1", "14.", "0,014", "(14)", "14;", "14,", "14...", "'14'"]
WITH_A_UNIT = ["$14", "14$", "$ 14", "14 €", "$14.00", "14%", "14 %", "14 apples", "14 kg", "14°C", "+$14"]
IN_A_SENTENCE = ["The answer is 14.", "Answer:14", "so: $14, all told", "7+7=14", "2x - 1 = $14 (a)"]


@pytest.mark.parametrize("answer", WRITTEN + WITH_A_UNIT + IN_A_SENTENCE)
def test_the_same_number_written_differently_earns_one_and_a_half(answer):
    assert correctness(said(answer), "14") == 1.5
    assert correctness(said("14"), answer) == 1.5, "nor does it matter which of the two is plain"


NO_NUMBERS = ["", "fourteen", "nan", "inf", ".", "14 =", "14 = x"]
OTHER_NUMBERS = ["15", "-14", "−14", "-$14", "$-14", "x = -14", "(-14)", "14.5", "1e999", "1e99999"]
SEVERAL = ["1 4", "14, 14", "13 or 14", "14 14", "7+7", "28/2", "14^1", "14:00", "1_4", "0x0e", "14,0"]
SEVERAL_RESULTS = ["x = 14, y = 15", "x = 15 or x = 14", "x = 7 + 7 = 14", "14 == 14"]
PARTS_OF_WORDS = ["e14", "x14", "14kg", "14th", "14k", "_14", "14_", "f(14)", "sqrt(14)", "twenty-14"]
PARTS_OF_FORMULAS = ["14!", "14*x", "2x - 14", "- 14", "--14", "14-", "/14", "~14", "...14", r"\sqrt{14}"]
OTHER_RELATIONS = ["x < 14", "x > 14", "x != 14", "x <= 14", "x >= 14", "x ~= 14", "x ≠ 14", "x => 14"]
CHANGED_BY_A_WORD = ["14 million", "14 Thousand", "minus 14", "negative 14", "not 14", "14 and a half"]
# Arabic-Indic and full-width digits, a superscript, a Roman numeral, a fraction
OTHER_DIGITS = ["١٤", "１４", "1⁴", "14⁴", "14²", "Ⅹ", "14½", "14 Ⅹ"]


@pytest.mark.parametrize(
    "answer",
    [
        *(NO_NUMBERS + OTHER_NUMBERS + SEVERAL + SEVERAL_RESULTS + PARTS_OF_WORDS + PARTS_OF_FORMULAS),
        *(OTHER_RELATIONS + CHANGED_BY_A_WORD + OTHER_DIGITS),
    ],
)
def test_anything_else_earns_nothing(answer):
    assert correctness(said(answer), "14") == 0.0
    assert answer == "14.5" or correctness(said("14"), answer) == 0.0


@pytest.mark.parametrize("answer", ["-14", "−14", "-$14", "$-14", "(-14)", "x = -14", "It is −14.0 °C"])
def test_a_sign_belongs_to_the_number(answer):
    assert correctness(said(answer), -14) == (2.0 if answer == "-14" else 1.5)


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [("$1,400", "1400"), ("1,400.5 km", "1400.5"), (".5", "0.5"), ("$.50", "0.5"), ("50%", "50%  of all")],
)
def test_thousands_and_decimals_belong_to_the_number(answer, wanted):
    assert correctness(said(answer), wanted) == 1.5


@pytest.mark.parametrize(("text", "answer"), [
    ("<answer>1</answer><answer>2</answer>", "2"), ("<answer>1<answer>2</answer>", "2"),
    ("<answer>1</answer>2</answer>", "1"), ("<answer>1</answer><answer>2", None),
    ("</answer><answer>", None), ("<answer>14", None), ("14</answer>", None),
])  # fmt: skip
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
    assert correctness(said("-1e40"), "-1" + "0" * 39 + "1") == 0.0
    assert correctness(said("$-1" + "0" * 39 + "1"), "-1" + "0" * 39 + "1") == 1.5


texts = st.text() | st.text("0123456789+-.,eEnaif٣⁴ =$%()x", max_size=30).map(said)


@given(texts, st.text() | st.integers() | st.floats() | st.none())
@example(said("e5"), "5")
@example(said("1" * 5000), "1")
@example(said("9e9999"), "9e9999")
def test_any_text_scores_and_never_raises(text, ground_truth):
    assert correctness(text, ground_truth) in (0.0, 1.5, 2.0)


numbers = st.integers(-(10**30), 10**30)


@given(numbers, numbers, st.sampled_from([" ", ", ", "; ", " or ", "/", "+", "-", "*", "^", ":", "\n", "="]))
def test_of_two_numbers_none_is_taken_but_the_one_behind_an_equals_sign(first, second, between):
    assert number_in(f"{first}{between}{second}") == (second if between == "=" else None)


no_exponents = st.text(st.characters(exclude_characters="eE"), max_size=8) | st.text("$-=,. 1x", max_size=8)


@given(no_exponents, st.integers(0, 9999), no_exponents)
@example("", 14, "⁴")
@example("x = ", 14, ".5")
def test_every_digit_behind_the_equals_sign_is_one_of_the_number(before, number, behind):
    text = f"{before}{number}{behind}"
    found = number_in(text)
    if found is not None:
        shown = [mark for mark in text.rpartition("=")[2] if unicodedata.category(mark)[0] == "N"]
        assert int("".join(shown)) == int("".join(map(str, found.as_tuple().digits)))


@pytest.mark.parametrize("present", [c for k in range(5) for c in combinations(TAGS, k)])
def test_a_fifth_for_each_tag_once_in_any_place(present):
    assert format_reward("x".join(reversed(2 * present))) == pytest.approx(0.2 * len(present), abs=1e-15)


@pytest.mark.parametrize("text", ["<Answer>", "< answer>", "answer", "<answer", "＜answer＞"])
def test_almost_a_tag_is_none(text):
    assert format_reward(text) == 0.0
