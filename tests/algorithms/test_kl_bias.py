"""Test biases of the KL estimators: exact means over a whole vocabulary, by hand and against closed forms."""

import math

import pytest
import torch
from torch import Tensor

from grpo_verl_ext.algorithms.kl import k1, k2, k3

LN2, LN3 = math.log(2), math.log(3)


def expected(estimator, logits: Tensor, ref_logits: Tensor) -> tuple[Tensor, Tensor]:
    """E[k] and E[∇k] over a token from the policy at each of N positions: (N, V) → (N,), (N, V)."""
    logits = logits.clone().requires_grad_()
    log_prob, ref_log_prob = logits.log_softmax(dim=-1), ref_logits.log_softmax(dim=-1)
    estimates = estimator(log_prob, ref_log_prob, torch.ones_like(logits))
    value = (log_prob.detach().exp() * estimates).sum(dim=-1)
    return value.detach(), torch.autograd.grad(value.sum(), logits)[0]


def close(found: Tensor, wanted: Tensor) -> None:
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-13)


@pytest.fixture
def logits() -> tuple[Tensor, Tensor]:
    """Four positions, seven tokens; neither is normalised."""
    policy, reference = torch.randn(
        2, 4, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(3)
    ) * torch.tensor(2.0)
    return policy, reference + 5


def probabilities(logits: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    policy, reference = (each.exp() / each.exp().sum(-1, keepdim=True) for each in logits)
    return policy, reference


def closed_kl(policy: Tensor, reference: Tensor) -> Tensor:
    return (policy * (policy / reference).log()).sum(-1)


def closed_kl_gradient(policy: Tensor, reference: Tensor) -> Tensor:
    """∂KL/∂logit_v = π_v (log π_v/ref_v − KL), from ∂π_u/∂logit_v = π_u (1[u=v] − π_v)."""
    return policy * ((policy / reference).log() - closed_kl(policy, reference).unsqueeze(-1))


@pytest.mark.parametrize("estimator", [k1, k3])
def test_k1_and_k3_have_the_right_value(estimator, logits: tuple[Tensor, Tensor]) -> None:
    close(expected(estimator, *logits)[0], closed_kl(*probabilities(logits)))


def test_k2_has_another_value(logits: tuple[Tensor, Tensor]) -> None:
    policy, reference = probabilities(logits)
    wanted = (policy * (policy / reference).log() ** 2).sum(-1) / 2
    close(expected(k2, *logits)[0], wanted)
    assert ((wanted - closed_kl(policy, reference)).abs() > 0.01).all()


def test_k1_pulls_nowhere(logits: tuple[Tensor, Tensor]) -> None:
    close(expected(k1, *logits)[1], torch.zeros(4, 7, dtype=torch.float64))


def test_k2_has_the_gradient_of_the_kl(logits: tuple[Tensor, Tensor]) -> None:
    close(expected(k2, *logits)[1], closed_kl_gradient(*probabilities(logits)))


def test_k3_has_the_gradient_of_the_other_kl(logits: tuple[Tensor, Tensor]) -> None:
    policy, reference = probabilities(logits)
    close(expected(k3, *logits)[1], policy - reference)


def test_the_limit_on_log_ratios_shows() -> None:
    # The policy is sure of a token to which the reference gives e^−30: k1 stops at 20, and so does its mean.
    policy = torch.tensor([[60.0, 0.0]], dtype=torch.float64)
    reference = torch.tensor([[-30.0, 0.0]], dtype=torch.float64)
    assert expected(k1, policy, reference)[0].item() == pytest.approx(20, abs=1e-9)
    assert expected(k2, policy, reference)[0].item() == pytest.approx(200, abs=1e-9)
