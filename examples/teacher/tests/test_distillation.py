"""Test GVPO as distillation: its theorems on a policy over a handful of responses, and the metrics of a fit.

Expectations are of pairs of responses; `test_the_estimator_is_unbiased` shows that other group sizes have the
same.
"""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from descent import minimise
from gvpo_teacher import distillation
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from grpo_verl_ext import gvpo, losses
from grpo_verl_ext.algorithms.groups import group_deviation, group_sum

F64 = torch.float64
TEACHER = torch.tensor([0.1, -0.4, 0.9, 0.0, -1.2], dtype=F64).log_softmax(0)
START = torch.tensor([-0.3, 0.5, 0.1, 0.4, 0.2], dtype=F64).log_softmax(0)
OTHER = torch.tensor([0.3, 0.1, 0.2, 0.15, 0.25], dtype=F64)
LENGTHS = torch.tensor([1, 2, 4, 8, 16])
REWARDS = torch.tensor([0.0, 0.3, 0.1, 0.25, 0.15], dtype=F64)
SAMPLING: dict[str, Callable[[Tensor], Tensor]] = {
    "on-policy": lambda policy: policy.exp(),
    "off-policy": lambda policy: OTHER,
    "teacher's": lambda policy: TEACHER.exp(),
    "mixture": lambda policy: 0.5 * policy.exp() + 0.5 * TEACHER.exp(),
}


def expected_loss(
    policy: Tensor, sampling: Tensor, alpha: float, beta: float = 1, rewards: Tensor | None = None
) -> Tensor:
    """½ Var(f β (log π_θ − log π_T) − R) over the samples: the mean of GVPO's loss of a pair."""
    weight = LENGTHS.double() ** -alpha
    distance = beta * weight * (policy - TEACHER) - (0 if rewards is None else rewards)
    mean = (sampling * distance).sum()
    return 0.5 * (sampling * (distance - mean).square()).sum()


def total_variation(one: Tensor, other: Tensor) -> float:
    return 0.5 * (one.exp() - other.exp()).abs().sum().item()


@pytest.mark.parametrize("alpha", [0, 0.5, 1])
@pytest.mark.parametrize("sampling", SAMPLING.values(), ids=SAMPLING)
def test_the_loss_is_zero_for_the_teacher_alone(sampling, alpha):
    assert expected_loss(TEACHER, sampling(TEACHER), alpha).item() == 0
    assert expected_loss(START, sampling(START), alpha).item() > 1e-4
    found = minimise(lambda policy: expected_loss(policy, sampling(policy.detach()), alpha), START)
    assert total_variation(found, TEACHER) <= 1e-6
    assert total_variation(START, TEACHER) > 0.1, "the descent had somewhere to go"


@pytest.mark.parametrize("alpha", [0, 0.5, 1])
def test_on_a_part_of_the_responses_the_ratio_to_the_teacher_is_a_constant_times_a_power_of_the_length(alpha):
    """The induced distribution: π_θ = π_T e^{c |y|^α} on what is sampled, for some c."""
    support = torch.tensor([True, False, True, True, False])
    sampling = OTHER * support / (OTHER * support).sum()
    found = minimise(lambda policy: expected_loss(policy, sampling, alpha), START)
    constants = ((found - TEACHER) * LENGTHS.double() ** -alpha)[support]
    assert (constants - constants[0]).abs().max() <= 1e-6
    assert constants[0].abs() > 1e-3


@pytest.mark.parametrize("alpha", [0, 0.5])
@pytest.mark.parametrize("sampling", SAMPLING.values(), ids=SAMPLING)
def test_with_a_reward_the_minimiser_is_the_teacher_tilted_by_it(sampling, alpha):
    beta = 0.5
    found = minimise(
        lambda policy: expected_loss(policy, sampling(policy.detach()), alpha, beta, REWARDS), START
    )
    low, high = -20.0, 20.0  # π_T e^{(R/β + c) |y|^α}, with the c that makes it sum to one, by bisection
    for _ in range(200):
        c = (low + high) / 2
        total = (TEACHER + (REWARDS / beta + c) * LENGTHS.double() ** alpha).exp().sum().item()
        low, high = (c, high) if total < 1 else (low, c)
    wanted = TEACHER + (REWARDS / beta + low) * LENGTHS.double() ** alpha
    assert total_variation(found, wanted) <= 1e-6
    if alpha == 0:
        assert total_variation(wanted, (TEACHER + REWARDS / beta).log_softmax(0)) <= 1e-12
    assert total_variation(TEACHER, wanted) > 0.01


def test_on_policy_the_gradient_is_that_of_the_reverse_kl():
    """The policy gradient of KL(π_θ ‖ π_T) is the special case f = 1 on the student's own samples."""
    logits = START.clone().requires_grad_()
    policy = logits.log_softmax(0)
    (ours,) = torch.autograd.grad(expected_loss(policy, policy.detach().exp(), 0), logits)
    logits = START.clone().requires_grad_()
    policy = logits.log_softmax(0)
    (theirs,) = torch.autograd.grad((policy.exp() * (policy - TEACHER)).sum(), logits)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("alpha", [0, 1])
def test_the_estimator_is_unbiased(k, alpha):
    """Over all 3^k samples of k responses, by the functions that a training calls: value and gradient."""
    probability = torch.tensor([0.5, 0.2, 0.3], dtype=F64)
    log_prob = START[:3].clone().requires_grad_()
    total = torch.zeros((), dtype=F64)
    for sample in itertools.product(range(3), repeat=k):
        rows = list(sample)
        weighted = gvpo.length_weight(LENGTHS[rows], alpha) * (log_prob - TEACHER[:3])[rows]
        mean = weighted.detach().mean()
        loss = gvpo.squared_error(gvpo.residual(weighted, torch.zeros(k), mean, 1), k).sum()
        total = total + probability[rows].prod() * loss
    (gradient,) = torch.autograd.grad(total, log_prob)
    distance = LENGTHS[:3].double() ** -alpha * (log_prob - TEACHER[:3])
    variance = (probability * distance.square()).sum() - (probability * distance).sum().square()
    (wanted,) = torch.autograd.grad(0.5 * variance, log_prob)
    assert total.item() == pytest.approx(0.5 * variance.item(), rel=1e-12)
    torch.testing.assert_close(gradient, wanted, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("sampling", SAMPLING.values(), ids=SAMPLING)
def test_a_text_in_two_spellings_would_count_twice(sampling):
    """Two sequences that are one text get its whole probability each; `teacher.text` leaves one out."""
    teacher = torch.tensor([0.5, 0.5, 0.2, 0.2, 0.1], dtype=F64).log()  # of texts a, a, b, c, d

    def loss(policy: Tensor) -> Tensor:
        apart, weights = policy - teacher, sampling(policy.detach())
        return 0.5 * (weights * (apart - (weights * apart).sum()).square()).sum()

    found = minimise(loss, START).exp()
    assert found[:2].sum().item() == pytest.approx(1 / 1.5, abs=1e-6)
    one_spelling = torch.tensor([True, False, True, True, True])
    kept = OTHER * one_spelling / (OTHER * one_spelling).sum()

    def loss_of_kept(policy: Tensor) -> Tensor:
        apart = policy - teacher
        return 0.5 * (kept * (apart - (kept * apart).sum()).square()).sum()

    found = minimise(loss_of_kept, START).exp()[one_spelling]
    assert torch.allclose(found / found.sum(), teacher.exp()[one_spelling], atol=1e-6)


def test_weights_of_lengths_by_hand():
    lengths = torch.tensor([1, 4, 16, 0])
    assert gvpo.length_weight(lengths, 0.5).tolist() == [1, 0.5, 0.25, 1]
    assert gvpo.length_weight(lengths, 0).tolist() == [1, 1, 1, 1]
    assert gvpo.length_weight(lengths, 1).tolist() == [1, 0.25, 0.0625, 1]


@given(st.lists(st.tuples(st.floats(-9, 0), st.floats(-9, 0), st.integers(1, 40)), min_size=2, max_size=6))
def test_residuals_are_zero_for_a_teacher_that_differs_by_a_constant_alone(rows):
    own = torch.tensor([row[0] for row in rows], dtype=F64)
    lengths = torch.tensor([row[2] for row in rows])
    group, member = torch.zeros(len(rows), dtype=torch.int64), torch.ones(len(rows), dtype=torch.bool)
    same = distillation.residuals(own - (own - 3), lengths, group, member, 0)
    assert same.abs().max() <= 1e-12
    other = torch.tensor([row[1] for row in rows], dtype=F64)
    found = distillation.residuals(own - other, lengths, group, member, 0.5)
    weighted = [
        (a - b) / math.sqrt(n) for a, b, n in zip(own.tolist(), other.tolist(), lengths.tolist(), strict=True)
    ]
    mean = math.fsum(weighted) / len(weighted)
    assert found.tolist() == pytest.approx([each - mean for each in weighted], rel=1e-9, abs=1e-12)


def test_a_fit_by_hand():
    """Two prompts, a padding row; of the last prompt one response is not chosen."""
    own = torch.tensor([-1.0, -3.0, -2.0, -6.0, 0.0], dtype=F64)
    teacher = torch.tensor([-2.0, -6.0, -5.0, -1.0, 0.0], dtype=F64)
    group, member = torch.tensor([0, 0, 1, 1, 2]), torch.tensor([True, True, True, True, False])
    residual = distillation.residuals(own - teacher, torch.ones(5, dtype=torch.int64), group, member, 0)
    assert residual.tolist() == [-1, 1, 4, -4, 0]
    deviations = group_deviation(own, group, member), group_deviation(teacher, group, member)
    chosen = torch.tensor([True, True, True, False, False])
    fit = distillation.fit(own, teacher, residual, deviations, chosen)
    assert fit.kl == pytest.approx((1 + 3 + 3) / 3)
    assert (fit.log_prob, fit.teacher_log_prob) == (pytest.approx(-2), pytest.approx(-13 / 3))
    assert fit.residual == pytest.approx(math.sqrt((1 + 1 + 16) / 3))
    # deviations 1, −1, 2 and 2, −2, −2
    assert fit.agreement == pytest.approx((2 + 2 - 4) / math.sqrt(6 * 12))


def test_agreement_of_equal_log_probs_is_none():
    own = torch.tensor([-1.0, -1.0], dtype=F64)
    everyone = torch.tensor([True, True])
    group = torch.zeros(2, dtype=torch.int64)
    deviations = group_deviation(own, group, everyone), group_deviation(own, group, everyone)
    assert distillation.fit(own, own, own * 0, deviations, everyone).agreement == 0
    assert group_sum(torch.ones(2), group).tolist() == [2, 2]


def test_distillation_in_one_call_is_gvpos_around_the_teacher() -> None:
    """As the error says that stands in the place of a function: ½ Var(log π_θ − log π_T), k − 1."""
    with pytest.raises(AttributeError, match=r"gvpo_distill.*losses\.gvpo\(log_prob, teacher_log_prob"):
        losses.gvpo_distill  # noqa: B018
    log_prob = torch.tensor([[-1.0, -2.0], [-0.5, -4.0], [-3.0, -1.0]], dtype=torch.float64)
    teacher = torch.tensor([[-2.0, -2.0], [-1.0, -1.0], [-1.0, -1.5]], dtype=torch.float64)
    found, _ = losses.gvpo(
        log_prob, teacher, torch.ones(3, 2), rewards=torch.zeros(3), groups=["a"] * 3, gvpo_beta=1
    )
    # 1, −2.5, −1.5 with the mean −1
    assert found.item() == pytest.approx(0.5 * (2.0**2 + 1.5**2 + 0.5**2) / 2)
