"""Test Clip-Cov and KL-Cov, arXiv 2505.22617, by hand and as properties."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from grpo_verl_ext.algorithms import covariance
from grpo_verl_ext.algorithms.mini_batch import MiniBatchRows

F64 = torch.float64
WIDE = {"clip_ratio_low": 1.0, "clip_ratio_high": 1.0}
PPOS = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.2}


def rows(log_prob: list[float], advantages: list[float], old: list[float] | None = None) -> MiniBatchRows:
    """A mini-batch of two rows, of which the second has one token less and a place under the mask."""
    mask = torch.ones(2, (len(log_prob) + 1) // 2, dtype=torch.bool)
    mask[1, -1] = len(log_prob) % 2 == 0

    def padded(values: list[float]) -> Tensor:
        return torch.zeros(mask.shape, dtype=F64).masked_scatter(mask, torch.tensor(values, dtype=F64))

    columns = (padded(each) for each in (log_prob, log_prob if old is None else old, advantages))
    numbers = torch.zeros(2, dtype=torch.int64)
    return MiniBatchRows(*columns, mask, numbers, numbers, seed=3)


# Means −2 and 1: deviations of log π are 1, −1, 0, 2, −2, those of A are 1, 0, −1, 2, −2.
FIVE = rows([-1.0, -3.0, -2.0, 0.0, -4.0], [2.0, 1.0, 0.0, 3.0, -1.0])


def test_covariances_by_hand() -> None:
    assert covariance.covariances(FIVE).tolist() == [[1, 0, 0], [4, 4, 0]]


@pytest.mark.parametrize(
    ("share", "chosen"),
    [
        # At least one; of the two with c = 4 the first.
        (1e-9, [[0, 0, 0], [1, 0, 0]]),
        (0.4, [[0, 0, 0], [1, 1, 0]]),
        (0.79, [[1, 0, 0], [1, 1, 0]]),
        (1.0, [[1, 1, 1], [1, 1, 0]]),
    ],
)
def test_the_largest_by_hand(share: float, chosen: list[list[int]]) -> None:
    assert covariance.largest_covariances(FIVE, share=share).int().tolist() == chosen


@pytest.mark.parametrize(
    ("low", "high", "share", "allowed"),
    [
        (0.5, 5.0, 1.0, {0, 3, 4}),
        (1.0, 5.0, 1.0, {3, 4}),  # both bounds are exclusive
        (0.5, 4.0, 1.0, {0}),
        (4.0, 5.0, 1.0, set()),
    ],
)
def test_those_between_the_bounds_are_drawn(low: float, high: float, share: float, allowed: set[int]) -> None:
    drawn = covariance.drawn_covariances(FIVE, share=share, low=low, high=high, **WIDE)
    assert set(drawn[FIVE.response_mask].nonzero().flatten().tolist()) == allowed


def test_each_of_those_is_drawn_equally_often() -> None:
    counts = torch.zeros(5)
    for seed in range(600):
        drawn = covariance.drawn_covariances(FIVE._replace(seed=seed), share=0.4, low=0.5, high=5.0, **WIDE)
        assert drawn.sum() == 2
        counts += drawn[FIVE.response_mask]
    # Two of three: 400 of 600 each, with a standard deviation of 11.5; five of them.
    assert counts[[1, 2]].tolist() == [0, 0]
    assert (counts[[0, 3, 4]] - 400).abs().max() < 58


def test_tokens_that_the_clip_has_cut_off_are_not_drawn() -> None:
    # ρ = e^0.5 with A > 0 beyond 1.2, and e^−0.5 with A < 0 below 0.8, are cut off; the others are not.
    log_prob, shift = [-1.0, -3.0, -2.0, 0.0, -4.0], [0.1, 0.5, 0.0, 0.5, -0.5]
    old = [now - by for now, by in zip(log_prob, shift, strict=True)]
    batch = rows(log_prob, [2.0, 1.0, 0.0, 3.0, -1.0], old)
    drawn = covariance.drawn_covariances(batch, share=1.0, low=0.5, high=5.0, **PPOS)
    assert drawn.int().tolist() == [[1, 0, 0], [0, 0, 0]]


@given(st.lists(st.tuples(*[st.floats(-5, 5)] * 2), min_size=3, max_size=12), st.floats(0.01, 1))
@settings(derandomize=True, deadline=None, max_examples=80)
def test_as_many_as_the_share_and_none_smaller(tokens: list[tuple[float, float]], share: float) -> None:
    batch = rows([pair[0] for pair in tokens], [pair[1] for pair in tokens])
    chosen, c = covariance.largest_covariances(batch, share=share), covariance.covariances(batch)
    assert chosen.sum() == max(1, math.floor(share * len(tokens)))
    assert not chosen[~batch.response_mask].any()
    others = c[batch.response_mask & ~chosen]
    assert len(others) == 0 or c[chosen].min() >= others.max()


@given(
    st.lists(st.tuples(*[st.floats(-5, 5)] * 3), min_size=3, max_size=12),
    st.floats(0.01, 1),
    st.integers(0, 99),
)
@settings(derandomize=True, deadline=None, max_examples=80)
def test_as_many_as_the_share_are_drawn_of_those_that_may_be(
    tokens: list[tuple[float, float, float]], share: float, seed: int
) -> None:
    batch = rows(*[[token[part] for token in tokens] for part in range(3)])._replace(seed=seed)
    drawn = covariance.drawn_covariances(batch, share=share, low=0.5, high=5.0, **PPOS)
    c, ratio = covariance.covariances(batch), (batch.log_prob - batch.old_log_prob).exp()
    cut_off = torch.where(batch.advantages > 0, ratio > 1.2, (batch.advantages < 0) & (ratio < 0.8))
    eligible = batch.response_mask & (c > 0.5) & (c < 5.0) & ~cut_off
    assert not (drawn & ~eligible).any()
    assert drawn.sum() == min(max(1, math.floor(share * len(tokens))), int(eligible.sum()))


def test_a_drawn_token_has_no_loss_and_no_gradient_whatever_it_is() -> None:
    log_prob = torch.tensor([[0.5, math.nan, 0.1]], dtype=F64, requires_grad=True)
    zeros, ones = torch.zeros(1, 3, dtype=F64), torch.ones(1, 3, dtype=F64)
    mask, drawn = torch.tensor([[1, 0, 1]]), torch.tensor([[1.0, 0.0, 0.0]])
    loss = covariance.clip_cov_surrogate(log_prob, zeros, ones, mask, drawn, **WIDE)
    assert loss[0].tolist() == pytest.approx([0.0, 0.0, -math.exp(0.1)])
    loss.sum().backward()
    assert log_prob.grad.tolist()[0] == pytest.approx([0.0, 0.0, -math.exp(0.1)])


def test_the_penalty_is_the_size_of_the_log_ratio() -> None:
    # ρ = e^x, A = 2: −2 e^x, and 0.5 |x| for the chosen ones; at x = 0 without gradient.
    x = torch.tensor([[0.3, -0.2, 0.0, 0.3, math.nan]], dtype=F64, requires_grad=True)
    chosen, mask = torch.tensor([[1, 1, 1, 0, 0]]), torch.tensor([[1, 1, 1, 1, 0]])
    zeros, twos = torch.zeros(1, 5, dtype=F64), torch.full((1, 5), 2.0, dtype=F64)
    loss = covariance.kl_cov_surrogate(x, zeros, twos, mask, chosen, coefficient=0.5)
    loss.sum().backward()
    up, down = -2 * math.exp(0.3), -2 * math.exp(-0.2)
    assert loss[0].tolist() == pytest.approx([up + 0.15, down + 0.1, -2.0, up, 0.0], rel=1e-12)
    assert x.grad[0].tolist() == pytest.approx([up + 0.5, down - 0.5, -2.0, up, 0.0], rel=1e-12)
