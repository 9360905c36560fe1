"""Test GVPO's three forms, and its theorems on a policy over a handful of responses.

The theorems are checked by descent on the expected loss, a sum over all pairs of responses: with k = 2 the
estimator is already unbiased; `test_the_estimator_is_unbiased` shows it for other k.
"""

import itertools
import math

import oracles
import pytest
import torch
from descent import minimise
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from grpo_verl_ext import gvpo
from grpo_verl_ext.algorithms.advantages import centred
from grpo_verl_ext.algorithms.aggregation import sequence_mean_constant_length
from grpo_verl_ext.algorithms.groups import group_deviation, group_sum
from grpo_verl_ext.algorithms.surrogate import clipped_surrogate
from grpo_verl_ext.algorithms.validation import TensorError


def variance_covariance(
    rewards: Tensor, log_ratio: Tensor, group: Tensor, member: Tensor, beta: float
) -> Tensor:
    """½ Var(R) + ½ β² Var(s) − β Cov(R, s) of each prompt, in parts that add up to it: (B,) → (B,).

    The loss when whole groups are at hand, from the total log-ratio s_i = log π_θ(y_i) − log π'(y_i), with
    k − 1 in every (co)variance. Gradient flows through the group means too.
    """
    implicit, reward = (group_deviation(values, group, member) for values in (beta * log_ratio, rewards))
    parts = 0.5 * reward.square() + 0.5 * implicit.square() - reward * implicit
    return gvpo.per_degree_of_freedom(parts, group_sum(member.to(parts.dtype), group))


F64 = torch.float64
REWARDS = torch.tensor([0.0, 0.3, 0.1, 0.25, 0.15], dtype=F64)
ANCHOR = torch.tensor([0.1, -0.4, 0.3, 0.0, -0.2], dtype=F64).log_softmax(0)
OTHER = torch.tensor([0.3, 0.1, 0.2, 0.15, 0.25], dtype=F64)

finite = st.floats(-4, 4, allow_subnormal=False)
prompts = st.lists(st.lists(st.tuples(finite, finite), min_size=1, max_size=5), min_size=1, max_size=4)


def flat(groups: list[list[tuple[float, float]]]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(rewards, log-ratios, group, size) of responses whose prompts are interleaved."""
    rows = [(i, j) for i, group in enumerate(groups) for j in range(len(group))]
    rows.sort(key=lambda row: (row[1], -row[0]))
    rewards = torch.tensor([groups[i][j][0] for i, j in rows], dtype=F64)
    log_ratio = torch.tensor([groups[i][j][1] for i, j in rows], dtype=F64).requires_grad_()
    group = torch.tensor([i for i, _ in rows])
    return rewards, log_ratio, group, group_sum(torch.ones_like(group), group)


def rowwise(rewards: Tensor, log_ratio: Tensor, group: Tensor, size: Tensor, beta: float) -> Tensor:
    """The loss as the plugin has it: the mean log-ratio of the group is a constant."""
    member = torch.ones_like(group, dtype=torch.bool)
    drift = group_sum(log_ratio.detach(), group) / size
    return gvpo.squared_error(gvpo.residual(log_ratio, centred(rewards, group, member), drift, beta), size)


@given(prompts, st.sampled_from([0.05, 0.1, 1.0, 3.0]))
def test_the_three_forms_and_the_paper_agree_in_value_and_gradient(groups, beta):
    rewards, log_ratio, group, size = flat(groups)
    member = torch.ones_like(group, dtype=torch.bool)
    split = rowwise(rewards, log_ratio, group, size, beta)
    whole = variance_covariance(rewards, log_ratio, group, member, beta)
    deviation = (log_ratio - group_sum(log_ratio, group) / size).detach()
    weights = centred(rewards, group, member) - beta * deviation
    # Not the value of the others, but their gradient.
    weighted = gvpo.per_degree_of_freedom(-beta * weights * log_ratio, size)

    expected = math.fsum(oracles.gvpo_prompt_loss(*zip(*g, strict=True), beta) for g in groups)
    assert split.sum().item() == pytest.approx(expected, rel=1e-12, abs=1e-13)
    assert whole.sum().item() == pytest.approx(expected, rel=1e-12, abs=1e-13)

    by_prompt = [oracles.gvpo_prompt_gradient(*zip(*g, strict=True), beta) for g in groups]
    rank_in_group = [int((group[:i] == group[i]).sum()) for i in range(len(group))]
    places = zip(group.tolist(), rank_in_group, strict=True)
    gradient = torch.tensor([by_prompt[g][j] for g, j in places], dtype=F64)
    for form in (split, whole, weighted):
        (found,) = torch.autograd.grad(form.sum(), log_ratio)
        torch.testing.assert_close(found, gradient, rtol=1e-12, atol=1e-13)


@given(prompts, st.sampled_from([0.05, 1.0]))
def test_the_parts_add_up_and_are_the_variances(groups, beta):
    rewards, log_ratio, group, size = flat(groups)
    targets = centred(rewards, group, torch.ones_like(group, dtype=torch.bool))
    drift = group_sum(log_ratio.detach(), group) / size
    parts = gvpo.squared_error_parts(log_ratio, targets, drift, size, beta)
    whole = gvpo.squared_error(gvpo.residual(log_ratio, targets, drift, beta), size)
    torch.testing.assert_close(sum(parts), whole, rtol=1e-12, atol=1e-13)
    for i, g in enumerate(groups):
        if len(g) > 1:
            expected = torch.cov(torch.tensor(g, dtype=F64).T)
            own = [part[group == i].sum().item() for part in parts]
            assert own[0] == pytest.approx(0.5 * expected[0, 0].item(), rel=1e-12, abs=1e-13)
            assert own[1] == pytest.approx(0.5 * beta**2 * expected[1, 1].item(), rel=1e-12, abs=1e-13)
            assert own[2] == pytest.approx(-beta * expected[0, 1].item(), rel=1e-12, abs=1e-13)


def test_an_anchor_of_its_own_by_hand():
    # Two prompts: {0, 2} and {1}; a padding row. β (ℓ − mean ℓ) of the first is 0.5 · (±1).
    group, member = torch.tensor([0, 1, 0, 2]), torch.tensor([True, True, True, False])
    ratios = torch.tensor([3.0, 7.0, 1.0, math.nan], dtype=F64)
    found = gvpo.anchored(torch.tensor([0.2, 0.0, -0.2, 0.0], dtype=F64), ratios, group, member, beta=0.5)
    assert found.tolist() == pytest.approx([0.2 - 0.5, 0.0, -0.2 + 0.5, 0.0], abs=1e-15)


def test_anchored_targets_and_the_total_log_ratio_are_the_same_loss():
    """Δ against targets for the anchor = Δ + ℓ against plain targets: the loss knows only π_θ / π'."""
    generator = torch.Generator().manual_seed(0)
    rewards, moved, before = (torch.randn(6, generator=generator, dtype=F64) for _ in range(3))
    group, member = torch.tensor([0, 1, 0, 1, 0, 1]), torch.ones(6, dtype=torch.bool)
    targets = gvpo.anchored(centred(rewards, group, member), before, group, member, 0.3)
    found = gvpo.squared_error(gvpo.residual(moved, targets, group_sum(moved, group) / 3, 0.3), 3)
    expected = variance_covariance(rewards, moved + before, group, member, 0.3)
    assert found.sum().item() == pytest.approx(expected.sum().item(), rel=1e-13)


def test_half_precision_is_summed_in_single():
    log_prob = torch.full((1, 4096), -1.0, dtype=torch.bfloat16)
    found = gvpo.sequence_log_ratio(log_prob, torch.zeros_like(log_prob), torch.ones(1, 4096))
    assert (found.dtype, found.item()) == (torch.float32, -4096.0)


def test_a_group_of_one_and_an_empty_one_contribute_nothing():
    residual = torch.tensor([5.0, 7.0, 2.0], dtype=F64, requires_grad=True)
    loss = gvpo.squared_error(residual, torch.tensor([1, 0, 3]))
    assert loss.tolist() == [0, 0, 1.0]
    loss.sum().backward()
    assert residual.grad.tolist() == [0, 0, 1.0]


@given(cut=st.integers(0, 12), seed=st.integers(0, 99))
@settings(derandomize=True, deadline=None, max_examples=50)
def test_sums_of_two_parts_give_the_drift_of_the_whole(cut, seed):
    generator = torch.Generator().manual_seed(seed)
    group = torch.randint(0, 4, (12,), generator=generator)
    member = torch.rand(12, generator=generator) < 0.8
    log_ratio = torch.where(member, torch.randn(12, generator=generator, dtype=F64), 0)
    size = group_sum(member.long(), group)
    halves = (slice(cut), slice(cut, None))
    parts = [gvpo.drift_sums(log_ratio[rows], group[rows], member[rows], 4) for rows in halves]
    found = gvpo.mean_drift(sum(parts), group, member, size)
    means = []
    for prompt, here in zip(group.tolist(), member.tolist(), strict=True):
        own = log_ratio[(group == prompt) & member].tolist()
        means.append(oracles.mean(own) if here else 0.0)
    assert found.tolist() == pytest.approx(means, rel=1e-12, abs=1e-12)


def test_the_mean_of_a_part_of_a_prompt_is_refused():
    group, member, size = torch.tensor([0, 1, 1]), torch.tensor([True, True, True]), torch.tensor([1, 3, 3])
    sums = gvpo.drift_sums(torch.zeros(3), group, member, num_groups=2)
    with pytest.raises(TensorError, match=r"2 responses of prompt 1; valid are all 3\. Pass sums over"):
        gvpo.mean_drift(sums, group, member, size)


# ----------------------------------------------------------------------------------------------- theorems


def expected_loss(policy: Tensor, sampling: Tensor, beta: float, anchor: Tensor = ANCHOR) -> Tensor:
    """E over pairs of responses drawn from ``sampling``, for log-probabilities ``policy``."""
    n = len(policy)
    pairs = torch.cartesian_prod(torch.arange(n), torch.arange(n))
    group = torch.arange(len(pairs)).repeat_interleave(2)
    log_ratio = (policy - anchor)[pairs.flatten()]
    member = torch.ones_like(group, dtype=torch.bool)
    losses = variance_covariance(REWARDS[pairs.flatten()], log_ratio, group, member, beta)
    return (losses.view(-1, 2).sum(1) * sampling[pairs].prod(1)).sum()


def kl(policy: Tensor, optimum: Tensor) -> float:
    return (policy.exp() * (policy - optimum)).sum().item()


def optimum_by_hand(anchor: Tensor, beta: float) -> Tensor:
    """π' e^{R/β}, normalised by a plain sum."""
    unnormalised = [math.exp(p + r / beta) for p, r in zip(anchor.tolist(), REWARDS.tolist(), strict=True)]
    return torch.tensor([math.log(u / math.fsum(unnormalised)) for u in unnormalised], dtype=F64)


SAMPLING = {
    "on-policy": lambda policy: policy.exp(),
    "off-policy": lambda policy: OTHER,
    "mixture": lambda policy: 0.5 * policy.exp() + 0.5 * OTHER,
}


@pytest.mark.parametrize("beta", [0.05, 0.1, 1.0])
@pytest.mark.parametrize("sampling", SAMPLING.values(), ids=SAMPLING)
def test_theorems_1_and_2_the_minimiser_is_the_optimum(sampling, beta):
    found = minimise(lambda policy: expected_loss(policy, sampling(policy.detach()), beta), ANCHOR)
    optimum = optimum_by_hand(ANCHOR, beta)
    assert abs(kl(found, optimum)) <= 1e-8
    assert kl(ANCHOR, optimum) > 1e-3, "the descent had somewhere to go"


def test_theorem_2_needs_support():
    """A response that is never sampled keeps its logit, whatever its reward."""
    sampling = OTHER * torch.tensor([1, 0, 1, 1, 1])
    found = minimise(lambda policy: expected_loss(policy, sampling / sampling.sum(), 0.1), ANCHOR)
    assert kl(found, optimum_by_hand(ANCHOR, 0.1)) > 0.1


def test_at_the_first_update_the_gradient_is_that_of_dr_grpo_times_a_constant():
    """β L k / (k − 1) for prompts of k responses, as docs/algorithms/gvpo.md says: 0.1 · 7 · 3 / 2."""
    prompts, k, length, beta = 2, 3, 7, 0.1
    mask = torch.arange(5) < torch.tensor([5, 2, 3, 1, 4, 2])[:, None]
    old = torch.linspace(-3, -0.1, 30, dtype=F64).view(6, 5)
    group = torch.arange(prompts).repeat_interleave(k)
    rewards = torch.tensor([1.0, 0.0, 0.5, 0.0, 0.0, 2.0], dtype=F64)
    advantages = centred(rewards, group, torch.ones(6, dtype=torch.bool))

    ours = old.clone().requires_grad_()
    log_ratio = gvpo.sequence_log_ratio(ours, old, mask)
    (gvpo.squared_error(gvpo.residual(log_ratio, advantages, 0.0, beta), k).sum() / prompts).backward()

    theirs = old.clone().requires_grad_()
    surrogate = clipped_surrogate(
        theirs, old, advantages[:, None].expand(6, 5), mask, clip_ratio_low=0.2, clip_ratio_high=0.2
    )
    sequence_mean_constant_length(surrogate, mask, prompts * k, length).backward()

    torch.testing.assert_close(ours.grad, theirs.grad * 1.05, rtol=1e-14, atol=0)


@pytest.mark.parametrize("steps", [2, 5])
def test_theorem_3_anchored_anew_at_each_step(steps):
    beta, policy = 1.0, ANCHOR
    for _ in range(steps):
        anchor = policy
        policy = minimise(
            lambda p, anchor=anchor: expected_loss(p, SAMPLING["on-policy"](p.detach()), beta, anchor), anchor
        )
    assert abs(kl(policy, optimum_by_hand(ANCHOR, beta / steps))) <= 1e-8


@pytest.mark.parametrize("k", [2, 3, 4])
def test_the_estimator_is_unbiased(k):
    """Over all 3^k samples of k responses: ½ Var(R − β s) of the distribution, value and gradient."""
    beta, rewards = 0.7, REWARDS[:3]
    probability = torch.tensor([0.5, 0.2, 0.3], dtype=F64)
    log_ratio = torch.tensor([0.4, -1.0, 0.3], dtype=F64, requires_grad=True)
    total = torch.zeros((), dtype=F64)
    for sample in itertools.product(range(3), repeat=k):
        rows = list(sample)
        group, size = torch.zeros(k, dtype=torch.int64), torch.full((k,), k)
        losses = rowwise(rewards[rows], log_ratio[rows], group, size, beta)
        total = total + probability[rows].prod() * losses.sum()
    (gradient,) = torch.autograd.grad(total, log_ratio)

    distance = rewards - beta * log_ratio
    variance = (probability * distance.square()).sum() - (probability * distance).sum().square()
    (expected,) = torch.autograd.grad(0.5 * variance, log_ratio)
    assert total.item() == pytest.approx(0.5 * variance.item(), rel=1e-12)
    torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-14)
