"""Test aggregations: by hand, against verl's ``agg_loss``, and that parts add up to the whole."""

import math
from functools import partial

import pytest
import torch
from verl.trainer.ppo.core_algos import agg_loss

from grpo_verl_ext.algorithms import aggregation

F64 = torch.float64
# Three responses of 3, 1 and 0 tokens, with sums 6 and 10; NaN where no token is.
LOSS = torch.tensor([[1, 2, 3], [10, math.nan, math.nan], [math.nan] * 3], dtype=F64)
MASK = torch.tensor([[1, 1, 1], [1, 0, 0], [0, 0, 0]])
B, N, D = 3, 4, 2

REDUCTIONS = {
    "token-mean": (partial(aggregation.token_mean, batch_num_tokens=N), 16 / 4),
    "seq-mean-token-mean": (partial(aggregation.sequence_mean_token_mean, global_batch_size=B), (2 + 10) / 3),
    "seq-mean-token-sum-norm": (
        partial(aggregation.sequence_mean_constant_length, global_batch_size=B, loss_scale_factor=8),
        16 / (3 * 8),
    ),
    "prompt mean": (partial(aggregation.prompt_mean, global_batch_size=B, group_size=3), 16 / 1),
}


@pytest.mark.parametrize(("reduce", "expected"), REDUCTIONS.values(), ids=REDUCTIONS)
@pytest.mark.parametrize("mask", [MASK, MASK.bool(), MASK.double()], ids=["int", "bool", "float"])
def test_by_hand(reduce, expected, mask):
    assert reduce(LOSS, mask).item() == pytest.approx(expected, rel=1e-15)
    assert reduce(LOSS, mask, dp_size=D).item() == pytest.approx(D * expected, rel=1e-15)


@pytest.mark.parametrize(("reduce", "expected"), REDUCTIONS.values(), ids=REDUCTIONS)
def test_micro_batches_of_two_ranks_add_up_to_the_whole(reduce, expected):
    ranks = [[slice(0, 1)], [slice(1, 2), slice(2, 3)]]
    parts = [reduce(LOSS[rows], MASK[rows], dp_size=len(ranks)) for rank in ranks for rows in rank]
    assert sum(parts).item() / len(ranks) == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"])
def test_equals_verl(mode):
    loss, mask = LOSS.nan_to_num(0), MASK
    counts = {"dp_size": D, "batch_num_tokens": N, "global_batch_size": B, "loss_scale_factor": 8}
    verls = agg_loss(loss, mask, mode, **counts)
    # verl divides a response's sum by |o| + 1e-8.
    assert REDUCTIONS[mode][0](loss, mask, dp_size=D).item() == pytest.approx(verls.item(), rel=1e-8)


@pytest.mark.parametrize(("reduce", "_expected"), REDUCTIONS.values(), ids=REDUCTIONS)
def test_gradient_is_finite_and_stays_off_the_mask(reduce, _expected):
    loss = LOSS.clone().requires_grad_()
    reduce(loss, MASK).backward()
    assert bool((loss.grad[MASK == 0] == 0).all())
    assert bool((loss.grad[MASK == 1] > 0).all())


def test_a_mini_batch_of_padding_alone_has_loss_zero():
    nothing = torch.zeros_like(MASK)
    assert aggregation.token_mean(LOSS, nothing, batch_num_tokens=0).item() == 0
    assert aggregation.sequence_mean_token_mean(LOSS, nothing, global_batch_size=B).item() == 0
    assert aggregation.local_token_mean(LOSS, nothing, global_batch_size=B).item() == 0


def test_the_local_mean_weighs_micro_batches_by_their_responses():
    # Whole: 16/4. Cut into rows 0 and 1–2: 1/3 · 6/3 + 2/3 · 10/1.
    assert aggregation.local_token_mean(LOSS, MASK, global_batch_size=B).item() == pytest.approx(4.0)
    parts = [aggregation.local_token_mean(LOSS[rows], MASK[rows], B) for rows in (slice(0, 1), slice(1, 3))]
    assert sum(parts).item() == pytest.approx(2 / 3 + 20 / 3)


def test_evenly_weighted_parts_average_to_the_token_mean():
    parts = [aggregation.evenly_weighted_token_mean(LOSS[i : i + 1], MASK[i : i + 1], N, B) for i in range(3)]
    assert sum(parts).item() / 3 == pytest.approx(16 / 4, rel=1e-15)


def test_evenly_weighted_responses_average_to_their_mean():
    # Responses of 2, 1 and 1 tokens with values 5, 1 and 0, cut into micro-batches of 2 tokens each.
    first = aggregation.evenly_weighted_response_mean(torch.tensor([5.0]), torch.ones(1, 2), 4, 3)
    second = aggregation.evenly_weighted_response_mean(torch.tensor([1.0, 0.0]), torch.ones(2, 1), 4, 3)
    assert (first + second).item() / 2 == pytest.approx((5 + 1 + 0) / 3)
    assert aggregation.evenly_weighted_response_mean(torch.zeros(1), torch.zeros(1, 2), 4, 3).item() == 0


def test_token_mean_of_flags():
    flags = torch.tensor([[True, False, False], [True, True, True], [True, True, True]])
    assert aggregation.micro_batch_token_mean(flags, MASK).item() == 2 / 4
