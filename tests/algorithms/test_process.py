"""Test process supervision: against an oracle of the paper's section, and its special case."""

import oracles
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from grpo_verl_ext import dense_group_ids, outcome_advantages, process_advantages
from grpo_verl_ext.algorithms import process
from grpo_verl_ext.algorithms.advantages import centred
from grpo_verl_ext.algorithms.validation import TensorError

F64 = torch.float64
Steps = list[list[tuple[float, int]]]


def flat(steps: Steps) -> tuple[Tensor, Tensor, Tensor]:
    rewards = [reward for own in steps for reward, _ in own]
    rows = torch.tensor([i for i, own in enumerate(steps) for _ in own], dtype=torch.int64)
    ends = torch.tensor([end for own in steps for _, end in own], dtype=torch.int64)
    return torch.tensor(rewards, dtype=F64), rows, ends


def mask_of(lengths: list[int]) -> Tensor:
    return (torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(-1)).long()


@st.composite
def batches(draw: st.DrawFn) -> tuple[Steps, list[int], list[int]]:
    rows = draw(st.integers(1, 6))
    lengths = draw(st.lists(st.integers(1, 8), min_size=rows, max_size=rows))
    ids = draw(st.lists(st.integers(0, 2), min_size=rows, max_size=rows))
    reward = st.floats(-3, 3, allow_subnormal=False).map(lambda x: round(x, 3))
    steps = [draw(st.lists(st.tuples(reward, st.integers(0, length - 1)), max_size=4)) for length in lengths]
    return steps, lengths, ids


@given(batches())
def test_equals_the_oracle(batch):
    # Unequal numbers of steps, responses and whole groups without one, several steps on one token.
    steps, lengths, ids = batch
    found = process_advantages(*flat(steps), mask_of(lengths), dense_group_ids(ids))
    for row, expected in zip(found, oracles.process_advantages(steps, lengths, ids, 1e-6), strict=True):
        # fp64 rounding, amplified by 1/std of rewards that are at least 0.001 apart.
        assert row[: len(expected)].tolist() == pytest.approx(expected, rel=1e-9, abs=1e-9)
        assert row[len(expected) :].abs().sum() == 0


@pytest.mark.parametrize("equal", [0.0, 0.1, 3.0])
def test_equal_rewards_teach_nothing(equal):
    steps = [[(equal, 0), (equal, 2)], [(equal, 1)], []]
    found = process_advantages(*flat(steps), mask_of([3, 2, 1]), torch.zeros(3, dtype=torch.int64))
    assert found.abs().max() == 0


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=6), st.data())
def test_outcome_supervision_is_one_step_at_the_last_token(rewards, data):
    lengths = data.draw(st.lists(st.integers(1, 5), min_size=len(rewards), max_size=len(rewards)))
    ids = data.draw(st.lists(st.integers(0, 2), min_size=len(rewards), max_size=len(rewards)))
    group = dense_group_ids(ids)
    mask = mask_of(lengths)
    token_level = torch.zeros(mask.shape, dtype=F64)
    token_level[torch.arange(len(rewards)), torch.tensor(lengths) - 1] = torch.tensor(rewards, dtype=F64)
    steps = [[(reward, length - 1)] for reward, length in zip(rewards, lengths, strict=True)]
    for baseline in ({}, {"baseline": centred}):
        found = process_advantages(*flat(steps), mask, group, **baseline)
        expected = outcome_advantages(token_level, mask, group, **baseline)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-15)


def test_words_of_a_tool_and_padding_get_nothing():
    mask = torch.tensor([[1, 0, 1], [0, 0, 0], [1, 1, 0]])
    steps, group = flat([[(1.0, 2)], [], [(0.0, 1)]]), torch.tensor([0, 1, 0])
    found = process_advantages(*steps, mask, group, baseline=centred)
    assert found.tolist() == [[0.5, 0, 0.5], [0, 0, 0], [-0.5, -0.5, 0]]


@pytest.mark.parametrize(
    ("row", "end", "message"),
    [
        ([0, 0, 2], [1, 3, 0], "row of step 2 is 2; valid is 0 … 1"),
        ([0, -1, 1], [1, 3, 0], "row of step 1 is -1; valid is 0 … 1"),
        ([0, 0, 1], [1, 4, -1], "end of step 1 is 4; valid is 0 … 3"),
        ([0, 0, 1], [-1, 3, 4], "end of step 0 is -1; valid is 0 … 3"),
    ],
)
def test_the_first_step_outside_the_batch_is_named(row: list[int], end: list[int], message: str) -> None:
    places = torch.tensor(row), torch.tensor(end)
    with pytest.raises(TensorError, match=f"^{message}[.] Pass (row|end) as positions in response_mask$"):
        process_advantages(torch.ones(3), *places, mask_of([4, 3]), torch.zeros(2, dtype=torch.int64))


@given(batches(), st.integers(1, 20))
def test_however_many_rows_are_summed_at_a_time_the_bits_are_the_same(batch, block):
    steps, lengths, ids = batch
    arguments = (*flat(steps), mask_of(lengths), dense_group_ids(ids))
    expected = process_advantages(*arguments)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "BLOCK", block)
        assert torch.equal(process_advantages(*arguments), expected)
