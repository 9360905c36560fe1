"""Test that a statistic is of all rows in one order, however they are put onto ranks."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from grpo_verl_ext.algorithms.mini_batch import MiniBatchRows, PartOfRows, evaluated
from grpo_verl_ext.algorithms.validation import TensorError

F64 = torch.float64
LENGTHS = [3, 0, 1, 2]
"""Tokens of the rows 0 to 3; token t of row i has log-prob 10 i + t."""


def part(rows: list[int]) -> PartOfRows:
    """Rows as a rank has them, in any order; rows 0 and 1, and 2 and 3, answer a prompt."""
    log_prob = torch.tensor([10.0 * row + t for row in rows for t in range(LENGTHS[row])], dtype=F64)
    numbers = [[LENGTHS[row], row, row // 2, 1 + row // 2] for row in rows]
    return PartOfRows(
        torch.stack([log_prob, -log_prob, 2 * log_prob]),
        torch.tensor(numbers, dtype=torch.int64).reshape(-1, 4).T,
    )


def test_the_rows_are_in_order_and_padded() -> None:
    seen: list[MiniBatchRows] = []

    def statistic(rows: MiniBatchRows) -> Tensor:
        seen.append(rows)
        return rows.log_prob

    assert evaluated(statistic, [part([2, 3]), part([1, 0])], own=0, seed=7).tolist() == [20, 30, 31]
    (rows,) = seen
    assert rows.response_mask.tolist() == [[True] * 3, [False] * 3, [True, False, False], [True, True, False]]
    assert rows.log_prob.tolist() == [[0, 1, 2], [0, 0, 0], [20, 0, 0], [30, 31, 0]]
    assert torch.equal(rows.old_log_prob, -rows.log_prob)
    assert torch.equal(rows.advantages, 2 * rows.log_prob)
    assert rows.prompt.tolist() == [0, 0, 1, 1]
    assert rows.prompt_size.tolist() == [1, 1, 2, 2]
    assert rows.seed == 7


@given(st.permutations(range(4)), st.lists(st.integers(0, 4), min_size=2, max_size=2))
@settings(derandomize=True, deadline=None, max_examples=60)
def test_every_cut_gives_each_token_its_own_number(order: list[int], ends: list[int]) -> None:
    low, high = sorted(ends)
    parts = [order[:low], order[low:high], order[high:]]

    def mean_and_rank(rows: MiniBatchRows) -> Tensor:
        tokens = rows.log_prob[rows.response_mask]
        ranks = torch.zeros_like(rows.log_prob)
        ranks[rows.response_mask] = tokens.argsort().argsort().to(F64)
        return tokens.mean() + 1000 * ranks

    whole = [0, 1, 2, 20, 30, 31]
    for own, rows in enumerate(parts):
        found = evaluated(mean_and_rank, [part(each) for each in parts], own, seed=0)
        tokens = [10 * row + t for row in rows for t in range(LENGTHS[row])]
        assert found.tolist() == [14 + 1000 * whole.index(token) for token in tokens]


@pytest.mark.parametrize(("shape", "value"), [((4, 1), [5.0] * 6), ((), [5.0] * 6)])
def test_one_number_for_responses_or_for_all(shape: tuple[int, ...], value: list[float]) -> None:
    assert evaluated(lambda _: torch.full(shape, 5.0), [part([0, 1, 2, 3])], 0, seed=0).tolist() == value


def test_another_shape_is_refused() -> None:
    with pytest.raises(TensorError, match=r"shape \(4,\); valid is \(4, 3\), .*Return values\[:, None\]"):
        evaluated(lambda _: torch.zeros(4), [part([0, 1, 2, 3])], 0, seed=0)


def test_rows_without_a_token() -> None:
    assert evaluated(lambda rows: rows.log_prob, [part([1])], 0, seed=0).tolist() == []
