"""Test the clipped surrogate: a table by hand, the oracle, where gradient flows, values under the mask."""

import math
from functools import partial

import oracles
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_verl_ext import clipped_surrogate, geometric_mean_surrogate, sequence_mean_token_mean
from grpo_verl_ext.algorithms.covariance import kl_cov_surrogate
from grpo_verl_ext.algorithms.off_policy import topr_loss
from grpo_verl_ext.algorithms.regression import mirror_descent_loss
from grpo_verl_ext.algorithms.surrogate import (
    geometric_mean_events,
    off_policy_mask,
    token_events,
)
from grpo_verl_ext.algorithms.validation import TensorError
from grpo_verl_ext.algorithms.vespo import vespo_loss

F64 = torch.float64
CLIP = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28}
LOG_CLIP = {"log_clip_low": 0.4, "log_clip_high": 0.4}


def one_token(ratio: float, advantage: float, **clips: float | None) -> tuple[float, float]:
    """(ℓ, dℓ/d log_prob) for one token."""
    log_prob = torch.tensor([[math.log(ratio)]], dtype=F64, requires_grad=True)
    old, mask = torch.zeros(1, 1, dtype=F64), torch.ones(1, 1, dtype=torch.bool)
    loss = clipped_surrogate(log_prob, old, torch.tensor([[advantage]], dtype=F64), mask, **(CLIP | clips))
    loss.sum().backward()
    return loss.item(), log_prob.grad.item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient", "c"),
    [
        # Inside the range nothing is clipped; the gradient of −ρA in log π is −ρA.
        (1.0, 1.0, -1.0, -1.0, None),
        (0.9, 2.0, -1.8, -1.8, None),
        (1.25, 1.0, -1.25, -1.25, None),
        (1.25, -1.0, 1.25, 1.25, None),
        # Better than the range allows: value at the border, no gradient.
        (1.5, 1.0, -1.28, 0.0, None),
        (0.5, -1.0, 0.8, 0.0, None),
        # Worse than the range: never clipped.
        (0.5, 1.0, -0.5, -0.5, None),
        (1.5, -1.0, 1.5, 1.5, None),
        (1.5, 0.0, 0.0, 0.0, None),
        # The dual clip bounds the loss of a worse response alone.
        (4.0, -1.0, 3.0, 0.0, 3.0),
        (2.9, -1.0, 2.9, 2.9, 3.0),
        (4.0, 1.0, -1.28, 0.0, 3.0),
        (0.5, -1.0, 0.8, 0.0, 3.0),
    ],
)
def test_clip_by_hand(ratio, advantage, loss, gradient, c):
    assert one_token(ratio, advantage, clip_ratio_c=c) == pytest.approx((loss, gradient), abs=1e-12)


tokens = st.tuples(st.floats(-2, 2), st.floats(-3, 3))


@given(st.lists(tokens, min_size=1, max_size=12), st.sampled_from([None, 1.5, 3.0]))
def test_equals_the_oracle(batch, c):
    for log_ratio, advantage in batch:
        expected = oracles.token_loss(log_ratio, advantage, 0.2, 0.28, c)
        found = one_token(math.exp(log_ratio), advantage, clip_ratio_c=c)
        assert found == pytest.approx(expected, rel=1e-12, abs=1e-12)


@given(st.lists(tokens, min_size=1, max_size=12), st.floats(1e-6, 1e3))
def test_a_positive_weight_may_be_folded_into_the_advantage(batch, weight):
    # What `per_prompt_token` rests on: value and gradient are homogeneous in A, clipping does not move.
    for log_ratio, advantage in batch:
        for clips in ({}, {"clip_ratio_c": 3.0}):
            loss, gradient = one_token(math.exp(log_ratio), advantage, **clips)
            found = one_token(math.exp(log_ratio), weight * advantage, **clips)
            assert found == pytest.approx((weight * loss, weight * gradient), rel=1e-12)


def one_response(log_ratios: list[float], advantage: float) -> tuple[list[float], float, list[float]]:
    """(ℓ of each token, their mean, its gradient in log_prob) of GMPO's surrogate for one response."""
    log_prob = torch.tensor([log_ratios], dtype=F64, requires_grad=True)
    old, mask = torch.zeros_like(log_prob).detach(), torch.ones_like(log_prob, dtype=torch.bool)
    loss = geometric_mean_surrogate(log_prob, old, torch.full_like(old, advantage), mask, **LOG_CLIP)
    mean = sequence_mean_token_mean(loss, mask, 1)
    mean.backward()
    return loss[0].tolist(), mean.item(), log_prob.grad[0].tolist()


@pytest.mark.parametrize(
    ("log_ratios", "advantage", "mean_log", "moves"),
    [
        # Inside the range: the gradient of −A s is −A s / |o| for each token.
        ([0.1, 0.3], 2.0, 0.2, [1, 1]),
        # Better than the range allows: that token is at the border, without gradient; the other has its own.
        ([0.6, -0.2], 2.0, (0.4 - 0.2) / 2, [0, 1]),
        ([0.6, -0.8], -1.0, (0.6 - 0.4) / 2, [1, 0]),
        # Worse than the range: never clipped.
        ([-0.9, 0.1], 1.0, -0.4, [1, 1]),
        ([0.9, 0.5], -1.0, 0.7, [1, 1]),
    ],
)
def test_the_geometric_mean_by_hand(log_ratios, advantage, mean_log, moves):
    expected = -advantage * math.exp(mean_log)
    losses, mean, gradient = one_response(log_ratios, advantage)
    assert losses == pytest.approx([expected] * 2, rel=1e-12)
    assert mean == pytest.approx(expected, rel=1e-12)
    assert gradient == pytest.approx([move * expected / 2 for move in moves], rel=1e-12)


responses = st.tuples(st.lists(st.floats(-2, 2), min_size=1, max_size=8), st.floats(-3, 3))


@given(responses)
def test_the_geometric_mean_equals_the_papers_product(response):
    log_ratios, advantage = response
    expected = oracles.gmpo_response_loss(log_ratios, advantage, 0.4)
    assert one_response(log_ratios, advantage)[1] == pytest.approx(expected, rel=1e-12, abs=1e-300)


def test_events_of_the_geometric_mean_by_hand():
    log_ratio = torch.tensor([[-0.5, -0.3, 0.3, 0.5, 0.5, 0.5]], dtype=F64)
    advantages = torch.tensor([[-1.0, -1.0, 1.0, 1.0, -1.0, 1.0]], dtype=F64)
    mask = torch.tensor([[1, 1, 1, 1, 1, 0]])
    events = geometric_mean_events(log_ratio, advantages, mask, log_clip_low=0.4, log_clip_high=0.2)
    assert events.clipped_low.int().tolist() == [[1, 0, 0, 0, 0, 0]]
    assert events.clipped_high.int().tolist() == [[0, 0, 1, 1, 0, 0]]
    assert not events.dual_clipped.any()


def test_a_range_of_the_geometric_mean_may_be_wider_than_any_ratio():
    # e^1000 fits no float; a log-ratio is limited to 20.
    log_ratio, advantages = torch.tensor([[-20.0, 20.0]], dtype=F64), torch.tensor([[-1.0, 1.0]], dtype=F64)
    wide = {"log_clip_low": 1e3, "log_clip_high": 1e3}
    events = geometric_mean_events(log_ratio, advantages, torch.ones(1, 2), **wide)
    assert not (events.clipped_low | events.clipped_high).any()


def test_the_off_policy_mask_by_hand():
    # Means of log π_old/π_θ: 0.6 beside a tool's token, 0.6, 0.5 = δ, −2, and a row without tokens.
    log_ratio = torch.tensor(
        [[-0.2, 9.0, -1.0], [-0.6, 0, 0], [-0.5, 0, 0], [2.0, 0, 0], [0, 0, 0]], dtype=F64
    )
    mask = torch.tensor([[1, 0, 1], [1, 0, 0], [1, 0, 0], [1, 0, 0], [0, 0, 0]])
    advantages = torch.tensor([[-1.0], [1.0], [-1.0], [-1.0], [-1.0]], dtype=F64).expand(5, 3)
    kept = off_policy_mask(log_ratio, torch.zeros(5, 3, dtype=F64), advantages, mask, threshold=0.5)
    assert kept.tolist() == [[False] * 3, [True] * 3, [True] * 3, [True] * 3, [True] * 3]


@given(responses, st.floats(0.01, 3))
def test_the_off_policy_mask_is_trls_definition(response, threshold):
    log_ratios, advantage = response
    log_prob = torch.tensor([log_ratios], dtype=F64)
    distance = -oracles.mean(log_ratios)
    arguments = (torch.zeros_like(log_prob), torch.full_like(log_prob, advantage), torch.ones_like(log_prob))
    kept = off_policy_mask(log_prob, *arguments, threshold=threshold)
    on_the_border = abs(distance - threshold) < 1e-9
    assert on_the_border or kept.all() == (not (advantage < 0 and distance > threshold))
    assert kept.all() or not kept.any()


LOSSES = [
    partial(clipped_surrogate, **CLIP, clip_ratio_c=3.0),
    partial(geometric_mean_surrogate, **LOG_CLIP),
    partial(kl_cov_surrogate, statistic=torch.zeros(3, 3), coefficient=1.0),
    partial(vespo_loss, k_pos=2.0, lambda_pos=3.0, k_neg=3.0, lambda_neg=2.0),
    partial(mirror_descent_loss, tau=1.0),
    topr_loss,
]


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf, 1e30])
@pytest.mark.parametrize("where", ["log_prob", "old_log_prob", "advantages"])
def test_garbage_under_the_mask_reaches_neither_value_nor_gradient(loss, garbage, where):
    # Behind a response and between its tokens, as a tool's; the last row has no token at all.
    mask = torch.tensor([[True, True, False], [True, False, True], [False, False, False]])
    clean = {name: torch.randn(3, 3, dtype=F64) for name in ("log_prob", "old_log_prob", "advantages")}
    dirty = clean | {where: torch.where(mask, clean[where], garbage)}
    found = []
    for tokens in (clean, dirty):
        leaf = tokens["log_prob"].clone().requires_grad_()
        value = loss(leaf, tokens["old_log_prob"], tokens["advantages"], mask)
        found.append((value.detach(), *torch.autograd.grad(value.sum(), leaf)))
    for one, other in zip(*found, strict=True):
        assert one.tolist() == other.tolist()
        assert bool((other[~mask] == 0).all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, F64])
@pytest.mark.parametrize("log_ratio", [-1e3, 1e3])
@pytest.mark.parametrize("advantage", [-1.0, 1.0])
@pytest.mark.parametrize("c", [None, 3.0])
def test_a_saturated_ratio_has_a_finite_loss_and_gradient(dtype, log_ratio, advantage, c):
    log_prob = torch.full((1, 1), log_ratio, dtype=dtype, requires_grad=True)
    old, mask = torch.zeros(1, 1, dtype=dtype), torch.ones(1, 1)
    a = torch.full((1, 1), advantage, dtype=dtype)
    loss = clipped_surrogate(log_prob, old, a, mask, **CLIP, clip_ratio_c=c)
    loss.sum().backward()
    assert loss.isfinite().all()
    assert log_prob.grad.tolist() == [[0.0]]


@pytest.mark.parametrize("loss", LOSSES)
def test_integers_are_no_advantages(loss):
    tensor = torch.zeros(3, 3)
    with pytest.raises(TensorError, match="advantages"):
        loss(tensor, tensor, tensor.long(), tensor)


def test_bf16_log_probs_are_subtracted_in_fp32():
    # Both are bf16 numbers, but their difference −4.69921875 is none: there it would be −4.6875.
    log_prob, old = torch.tensor([[-5.0]]).bfloat16(), torch.tensor([[-0.30078125]]).bfloat16()
    loss = clipped_surrogate(log_prob, old, torch.ones(1, 1), torch.ones(1, 1), **CLIP)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(-math.exp(-4.69921875), rel=1e-6)


def test_events_by_hand():
    ratio = torch.tensor([[0.5, 0.5, 1.5, 1.5, 4.0, 0.5, 4.0, 0.5]], dtype=F64)
    advantages = torch.tensor([[-1.0, 1.0, 1.0, -1.0, -1.0, 0.0, 0.0, -1.0]], dtype=F64)
    mask = torch.tensor([[1, 1, 1, 1, 1, 1, 1, 0]])
    events = token_events(ratio.log(), advantages, mask, **CLIP, clip_ratio_c=3.0)
    assert events.clipped_low.int().tolist() == [[1, 0, 0, 0, 0, 0, 0, 0]]
    assert events.clipped_high.int().tolist() == [[0, 0, 1, 0, 0, 0, 0, 0]]
    assert events.dual_clipped.int().tolist() == [[0, 0, 0, 0, 1, 0, 0, 0]]
    assert events.zero_advantage.int().tolist() == [[0, 0, 0, 0, 0, 1, 1, 0]]


def test_on_the_border_nothing_is_clipped():
    ratio, advantages = torch.ones(1, 2, dtype=F64), torch.tensor([[-1.0, 1.0]], dtype=F64)
    at_one = {"clip_ratio_low": 0.0, "clip_ratio_high": 0.0, "clip_ratio_c": 1.0}
    assert not any(e.any() for e in token_events(ratio.log(), advantages, torch.ones(1, 2), **at_one))
