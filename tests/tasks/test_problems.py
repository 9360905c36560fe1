"""Test problems, responses and rows: closed forms, determinism, and the split of training and test."""

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_verl_ext.tasks.chain_sum.problems import draw_problems, every_problem, prompt, response, rows
from grpo_verl_ext.tasks.folders import read_parquet, write_rows

terms_of_any_problem = st.lists(st.integers(0, 9), min_size=3, max_size=5).map(tuple)


def test_the_example_of_the_documentation():
    assert prompt((3, 4, 2, 5)) == "3+4+2+5=?"
    assert response((3, 4, 2, 5)) == "<reasoning>3+4=7;7+2=9;9+5=14;</reasoning><answer>14</answer>"


def test_the_line_between_the_splits_is_pinned():
    # sha256 of '0+0+2=?' starts with 10, of '0+0+9=?' with 4d, of '3+4+2+5=?' with 64; below 40 is test
    for split, terms in [("test", (0, 0, 2)), ("train", (0, 0, 9)), ("train", (3, 4, 2, 5))]:
        assert terms in every_problem(len(terms), split)


def test_every_problem_is_on_one_side():
    train, test = every_problem(3, "train"), every_problem(3, "test")
    assert sorted(train + test) == [(a, b, c) for a in range(10) for b in range(10) for c in range(10)]
    # a quarter of 1000, within four standard errors of 13.7
    assert 250 - 55 < len(test) < 250 + 55


@pytest.mark.parametrize("split", ["train", "test"])
def test_drawn_problems_are_different_of_their_split_and_evenly_long(split):
    drawn = draw_problems(split, 200, lengths=range(3, 5), seed=3)
    assert len(set(drawn)) == len(drawn) == 200
    assert {*drawn} <= {*every_problem(3, split), *every_problem(4, split)}
    assert [len(terms) for terms in drawn].count(3) == 100
    again, other = (draw_problems(split, 200, lengths=range(3, 5), seed=seed) for seed in (3, 4))
    assert drawn == again != other


def test_more_problems_than_there_are_is_refused():
    said = r"test_problems=900, but only \d+ problems of 3 to 3 terms are on the test side"
    with pytest.raises(ValueError, match=said):
        draw_problems("test", 900, lengths=range(3, 4), seed=1)


def test_a_short_length_gives_all_its_problems_and_the_longer_ones_share_the_rest():
    drawn = draw_problems("test", 512, lengths=range(2, 7), seed=1, by_set=True)
    lengths = [len(terms) for terms in drawn]
    assert len(set(drawn)) == 512
    two = len(every_problem(2, "test", by_set=True))
    assert two < 512 // 5
    # The 512 − two others in four parts that differ by one at most.
    parts = [(512 - two + part) // 4 for part in range(4)]
    assert lengths.count(2) == two
    assert sorted(lengths.count(n) for n in range(3, 7)) == sorted(parts)


def test_split_by_the_set_of_terms_no_test_problem_is_a_permutation_of_a_training_problem():
    def sets(split: str, *, by_set: bool) -> set[tuple[int, ...]]:
        return {tuple(sorted(terms)) for terms in every_problem(4, split, by_set=by_set)}

    train, test = sets("train", by_set=True), sets("test", by_set=True)
    assert not train & test
    # Four of ten digits with repetition: 13 choose 4. A quarter of them, within four standard errors.
    assert len(train | test) == 715
    assert abs(len(test) - 715 / 4) < 4 * (715 * 3 / 16) ** 0.5
    assert sets("train", by_set=False) & sets("test", by_set=False), "by the text it is otherwise"


@given(terms_of_any_problem, st.integers())
def test_all_steps_are_written_again_and_the_answer_is_their_sum(terms, seed):
    text = response(terms, slip_share=0.3, rng=random.Random(seed), rewrite_share=0.5)
    steps = [tuple(map(int, found)) for found in re.findall(r"(\d+)\+(\d+)=(\d+);", text)]
    own = steps[: len(terms) - 1]
    assert [right for _, right, _ in own] == list(terms[1:])
    assert steps == own * (len(steps) // len(own))
    assert text.endswith(f"<answer>{own[-1][2]}</answer>")


def test_how_often_the_steps_are_written_again():
    rng = random.Random(0)
    texts = [response((1, 2), slip_share=0.0, rng=rng, rewrite_share=0.3) for _ in range(4000)]
    again = [text.count("1+2=3;") - 1 for text in texts]
    # Geometric with mean 0.3/0.7 and variance 0.3/0.7²; four standard errors.
    assert sum(again) / 4000 == pytest.approx(0.3 / 0.7, abs=4 * (0.3 / 0.49 / 4000) ** 0.5)


def test_a_row_in_verls_format():
    assert rows([(1, 2), (3, 4, 2)], "train")[1] == {
        "data_source": "chain_sum",
        "prompt": [{"role": "user", "content": "3+4+2=?"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "9"},
        "extra_info": {
            "index": 1,
            "split": "train",
            "terms": [3, 4, 2],
            "response": "<reasoning>3+4=7;7+2=9;</reasoning><answer>9</answer>",
        },
    }


def test_rows_come_back_as_they_were_written_and_the_same_problems_give_the_same_bytes(tmp_path):
    problems = draw_problems("test", 20, lengths=range(3, 5), seed=1)
    for name in "ab":
        write_rows(tmp_path / name, rows(problems, "test"))
    assert read_parquet(tmp_path / "a") == rows(problems, "test")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
