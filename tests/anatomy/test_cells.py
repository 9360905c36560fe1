"""Test means by length and correctness, by hand."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_verl_ext.anatomy.weights import MOST_BINS, Weighed, cells_of, upper_edges

repeatable = settings(derandomize=True, deadline=None, max_examples=100)


def weighed(lengths: list[int], right: list[bool], weights: list[float]) -> Weighed:
    return Weighed(torch.tensor(lengths), torch.tensor(right), {"mine": torch.tensor(weights)})


def test_by_hand() -> None:
    # Two lengths, so two bins. Σ|w||o| = 2·2 + 2·1 + 2·0 + 4·½ = 8.
    cells = cells_of(weighed([2, 2, 2, 4], [True, False, False, False], [2.0, -1.0, 0.0, 0.5]))
    short, long = cells.by_length
    assert (short.shortest, short.longest, short.responses, short.tokens) == (2, 2, 3, 6)
    assert (long.shortest, long.longest, long.responses, long.tokens) == (4, 4, 1, 4)
    assert (short.share, long.share) == ({"mine": 0.75}, {"mine": 0.25})
    # Over 6 tokens: |w| 4 + 2 + 0, w 4 − 2 + 0.
    assert (short.weight, short.signed_weight) == ({"mine": 1.0}, {"mine": pytest.approx(2 / 6)})
    assert [(cell.right, cell.share["mine"]) for cell in cells.by_answer] == [(True, 0.5), (False, 0.5)]

    right, wrong, nobody, other = cells.by_both
    assert (right.right, right.weight, right.signed_weight) == (True, {"mine": 2.0}, {"mine": 2.0})
    # −1 and 0, two tokens each.
    assert (wrong.right, wrong.weight, wrong.signed_weight) == (False, {"mine": 0.5}, {"mine": -0.5})
    assert (nobody.responses, nobody.weight, nobody.share) == (0, {"mine": None}, {"mine": 0.0})
    assert (other.weight, other.mean_length) == ({"mine": 0.5}, 4.0)
    assert [cell.lengths for cell in cells_of(weighed([1, 3, 3], [True] * 3, [1.0] * 3)).by_answer] == [
        "1–3"
    ] * 2
    assert short.lengths == "2"


def test_a_mean_is_over_tokens_not_over_responses() -> None:
    # One token of weight 4 and three of weight 0 in one bin of lengths 1 … 3.
    lengths = [1, 3] + [9] * 8
    (first, *_) = cells_of(weighed(lengths, [True] * 10, [4.0, 0.0] + [1.0] * 8)).by_length
    assert (first.tokens, first.weight) == (4, {"mine": 1.0})


def test_edges_by_hand() -> None:
    # Ten responses in bins of two; then so many equal ones that three quantiles are one length.
    assert upper_edges(torch.arange(1, 11)).tolist() == [2, 4, 6, 8, 10]
    assert upper_edges(torch.tensor([1, 1, 5, 5, 5, 5, 5, 5, 7, 9])).tolist() == [1, 5, 9]
    assert upper_edges(torch.tensor([3, 3])).tolist() == [3]


@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=60))
@repeatable
def test_every_response_is_in_one_bin_and_no_bin_is_empty(lengths: list[int]) -> None:
    cells = cells_of(weighed(lengths, [length % 2 == 0 for length in lengths], [1.0] * len(lengths)))
    assert 1 <= len(cells.by_length) <= MOST_BINS
    for cell in cells.by_length:
        inside = [length for length in lengths if cell.shortest <= length <= cell.longest]
        assert (cell.responses, cell.tokens) == (len(inside), sum(inside)) != (0, 0)
        assert {cell.shortest, cell.longest} <= set(lengths)
    for section in (cells.by_length, cells.by_answer, cells.by_both):
        assert sum(cell.responses for cell in section) == len(lengths)
        assert sum(cell.share["mine"] for cell in section) == pytest.approx(1)
