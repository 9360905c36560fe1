"""Test outcome advantages: by hand, against the slow oracle, and invariances.

Not covered: the reward functions, and verl's call of the estimator (tests/plugin/test_estimators.py).
"""

import math

import numpy as np
import oracles
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from grpo_verl_ext import (
    batch_scaled,
    centred,
    dense_group_ids,
    group_scaled,
    leave_one_out,
    outcome_advantages,
    per_prompt_token,
)
from grpo_verl_ext.algorithms.advantages import (
    decoupled,
    has_tokens,
    is_truncated,
    learnt_from,
    mean_scaled,
    on_tokens,
)
from grpo_verl_ext.algorithms.validation import TensorError

F64 = torch.float64

# Eighths: sums and differences are exact, so no standard deviation is tiny but for rounding.
eighths = st.integers(-80, 80).map(lambda n: n / 8)
batches = st.lists(st.tuples(eighths, st.sampled_from("abcde")), min_size=1, max_size=24)


def advantages_of(baseline, rewards, ids, dtype=F64) -> Tensor:
    rewards = torch.tensor(rewards, dtype=dtype)
    return baseline(rewards, dense_group_ids(ids), torch.ones(len(ids), dtype=torch.bool))


def assert_close(found: Tensor, expected, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(found, torch.tensor(expected, dtype=found.dtype), rtol=0, atol=tolerance)


def test_groups_are_numbered_as_they_appear():
    assert dense_group_ids(["b", "a", "b", "c"]).tolist() == [0, 1, 0, 2]
    assert dense_group_ids(np.array([7, 3, 7])).tolist() == [0, 1, 0]
    assert dense_group_ids([1, "1", "a", "a\0", 2**63, 1]).tolist() == [0, 1, 2, 3, 4, 0]


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32])
def test_rows_with_tokens(dtype):
    mask = torch.tensor([[1, 1, 0], [0, 0, 0], [0, 0, 1]], dtype=dtype)
    assert has_tokens(mask).tolist() == [True, False, True]


@given(st.lists(st.tuples(st.integers(0, 16), st.sampled_from("abcdefgh")), min_size=1, max_size=24))
def test_mean_scaled_equals_the_formula(batch):
    ids = [prompt for _, prompt in batch]
    rewards = [eighth / 8 for eighth, _ in batch]
    found = advantages_of(mean_scaled, rewards, ids)
    # Of a deviation's rounding at most 1e-15, and ε = 1e-6 where no reward of the group is above 0.
    assert_close(found, oracles.maxrl_advantages(rewards, ids, eps=1e-6), tolerance=1e-12)


def test_mean_scaled_estimates_the_gradient_of_a_truncated_log_likelihood():
    # Of n independent answers, each right with probability p, K are right. Σ (right) ∂log π/∂p / K has the
    # mean Σ_{k=1}^{n} (1 − p)^{k−1}, the gradient of −Σ_{k≤n} (1 − p)^k / k. The −1 of every answer has mean
    # 0 over all K; K = 0, where nothing is learned, would contribute (1 − p)^{n−1}: the last term is lost.
    p, n = 0.3, 5
    expected = 0.0
    for right in range(1, n + 1):
        advantages = advantages_of(mean_scaled, [1.0] * right + [0.0] * (n - right), ["x"] * n).tolist()
        score = sum(a / p if i < right else -a / (1 - p) for i, a in enumerate(advantages)) / n
        expected += math.comb(n, right) * p**right * (1 - p) ** (n - right) * score
    assert expected == pytest.approx(sum((1 - p) ** (k - 1) for k in range(1, n)), rel=1e-5)


def test_mean_scaled_refuses_negative_rewards_of_members():
    rewards, group = torch.tensor([1.0, -0.5, -2.0]), torch.zeros(3, dtype=torch.int64)
    with pytest.raises(TensorError, match=r"the reward of row 1 is -0\.5; MaxRL divides by .* rewards ≥ 0"):
        mean_scaled(rewards, group, torch.tensor([True, True, False]))
    assert mean_scaled(rewards, group, torch.tensor([True, False, False])).tolist() == [0.0, 0.0, 0.0]


def test_decoupled_by_hand():
    # Group x: right 1, 0 → ±½ over std √½, so ±√½; format 0.2, 0.6 → ∓√½ whatever its scale. Group y: right
    # 1, 1 → 0; format 0, 2 → ∓√½. With weights 2 and 1: x ±√½, y ∓√½; of these std √(4/3 · ½).
    rewards = torch.tensor([[1.0, 0.2], [1.0, 0.0], [0.0, 0.6], [1.0, 2.0]], dtype=F64)
    group, member = torch.tensor([0, 1, 0, 1]), torch.ones(4, dtype=torch.bool)
    found = decoupled(rewards, torch.tensor([2.0, 1.0]), group, member)
    expected = math.sqrt(3 / 4)
    assert found.tolist() == pytest.approx([expected, -expected, -expected, expected], rel=1e-5)


def test_decoupled_refuses_weights_for_other_rewards():
    group, member = torch.zeros(2, dtype=torch.int64), torch.ones(2, dtype=torch.bool)
    with pytest.raises(TensorError, match="a weight for each reward"):
        decoupled(torch.zeros(2, 3), torch.ones(2), group, member)
    with pytest.raises(TensorError, match=r"rewards has shape \(2,\)"):
        decoupled(torch.zeros(2), torch.ones(2), group, member)


@given(batches)
@example([(1.0, "a")])
@example([(0.125, "a")] * 7)
@example([(1.0, "a"), (0.0, "b"), (0.0, "a")])
def test_equals_the_oracle(batch):
    rewards, ids = [list(column) for column in zip(*batch, strict=True)]
    assert_close(advantages_of(group_scaled, rewards, ids), oracles.grpo_advantages(rewards, ids, 1e-6))
    assert_close(advantages_of(centred, rewards, ids), oracles.dr_grpo_advantages(rewards, ids))
    expected = oracles.batch_scaled_advantages(rewards, ids, 1e-6)
    assert_close(advantages_of(batch_scaled, rewards, ids), expected)
    of_others = oracles.rloo_advantages(rewards, ids)
    assert_close(advantages_of(leave_one_out, rewards, ids), of_others, tolerance=1e-11)


@pytest.mark.parametrize("baseline", [group_scaled, centred])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_equal_rewards_have_advantage_exactly_zero(baseline, dtype):
    # 0.1 is no binary fraction: a plain mean of seven of them is not 0.1, and ε would not hide that.
    assert advantages_of(baseline, [0.1] * 7, ["x"] * 7, dtype).tolist() == [0.0] * 7


@pytest.mark.parametrize("baseline", [group_scaled, centred, leave_one_out, batch_scaled])
def test_a_group_of_one_has_advantage_exactly_zero(baseline):
    assert advantages_of(baseline, [3.7, 1.0, 2.0], ["alone", "x", "x"])[0].item() == 0.0


def test_a_large_common_offset_costs_no_precision():
    # In fp32 the squares of 1e6 alone would swallow these differences.
    found = advantages_of(group_scaled, [1e6, 1e6 + 1, 1e6 + 2], ["x"] * 3, torch.float32)
    assert_close(found, [-1 / (1 + 1e-6), 0.0, 1 / (1 + 1e-6)], tolerance=1e-7)


@pytest.mark.parametrize("baseline", [group_scaled, centred, leave_one_out, batch_scaled])
def test_bf16_rewards_are_counted_in_fp32(baseline):
    rewards = torch.arange(9).sqrt().to(torch.bfloat16).unsqueeze(-1)
    group, mask = dense_group_ids(list("xxxxyyyyy")), torch.ones(9, 1)
    expected = outcome_advantages(rewards.float(), mask, group, baseline).to(torch.bfloat16)
    found = outcome_advantages(rewards, mask, group, baseline)
    assert found.dtype == torch.bfloat16
    assert found.tolist() == expected.tolist()


def test_advantages_stand_on_the_tokens_of_the_response_alone():
    # The reward stands on the last, masked, token of row 0, as when a tool has the last word.
    rewards = torch.tensor([[0.0, 0.0, 2.0], [0.0, 0.0, 0.0]], dtype=F64)
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    found = outcome_advantages(rewards, mask, dense_group_ids(["x", "x"]), centred)
    assert found.tolist() == [[1, 1, 0], [-1, 0, 0]]


@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf, 1e30])
@pytest.mark.parametrize("baseline", [group_scaled, centred, leave_one_out, batch_scaled])
@pytest.mark.parametrize("id_of_padding", ["pad", "x"])
def test_padding_rows_change_nothing(baseline, garbage, id_of_padding):
    rewards = torch.tensor([[0.0, 1.0], [0.0, 2.0], [0.0, 5.0]], dtype=F64)
    mask = torch.ones(3, 2)
    expected = outcome_advantages(rewards, mask, dense_group_ids(list("xxx")), baseline)
    rewards = torch.cat([rewards, torch.full((2, 2), garbage, dtype=F64)])
    mask = torch.cat([mask, torch.zeros(2, 2)])
    group, member = dense_group_ids(["x", "x", "x", id_of_padding, id_of_padding]), torch.arange(5) < 3
    padded = outcome_advantages(rewards, mask, group, baseline, member=member)
    assert padded.tolist() == [*expected.tolist(), [0, 0], [0, 0]]


def test_the_reward_of_a_response_without_tokens_counts():
    # Rewards 1, 0, 0, 1 of which both zeros were rejected: mean 1/2, std 1/√3.
    rewards, mask = torch.tensor([[1.0], [0], [0], [1]], dtype=F64), torch.tensor([[1], [0], [0], [1]])
    found = outcome_advantages(rewards, mask, dense_group_ids(list("xxxx")))
    high = 0.5 / (1 / math.sqrt(3) + 1e-6)
    assert_close(found, [[high], [0.0], [0.0], [high]])


def test_a_response_is_truncated_when_it_wrote_the_last_token_of_the_budget():
    # The third row ends with a token of a tool, the fourth goes on after one.
    mask = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 1, 0], [1, 0, 1]])
    assert is_truncated(mask, 3).tolist() == [True, False, False, True]
    assert is_truncated(mask, 4).tolist() == [False] * 4
    assert is_truncated(mask, 1).tolist() == [True] * 4
    # Of a batch that is wider than the budget, what is behind it counts too.
    wide = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 0, 0, 0], [1, 1, 0, 0, 1]])
    assert is_truncated(wide, 3).tolist() == [True, False, True]


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float32])
def test_a_truncated_response_loses_its_advantage(dtype):
    # A truncated response, one with a hole, one without a token; a budget that none reaches, and none at all.
    mask = torch.tensor([[1, 1, 1], [0, 1, 0], [0, 0, 0]]).to(dtype)
    before, advantages = mask.clone(), torch.tensor([2.0, 3.0, 4.0])
    assert on_tokens(advantages, learnt_from(mask, 3)).tolist() == [[0, 0, 0], [0, 3, 0], [0, 0, 0]]
    for learnt in (learnt_from(mask, 4), learnt_from(mask)):
        assert on_tokens(advantages, learnt).tolist() == [[2, 2, 2], [0, 3, 0], [0, 0, 0]]
    assert torch.equal(mask, before), "the caller's mask stays as it is"


def test_per_prompt_weights_by_hand():
    # Prompt x has 3 + 1 tokens, prompt y has 2, prompt z has 1; the padding row has none.
    mask = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 0, 0], [0, 0, 0]])
    found = per_prompt_token(mask.double(), mask, dense_group_ids(["x", "y", "x", "z", "pad"]))
    assert found.tolist() == [[0.25] * 3, [0.5, 0.5, 0], [0.25, 0, 0], [1, 0, 0], [0, 0, 0]]
