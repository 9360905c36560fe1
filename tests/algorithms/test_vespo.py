"""Test where VESPO's kernel is largest, and its loss where a policy has run away."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_verl_ext.algorithms.vespo import gamma_kernel, vespo_loss

F64 = torch.float64
KERNEL = {"k_pos": 2.0, "lambda_pos": 3.0, "k_neg": 3.0, "lambda_neg": 2.0}


@given(st.floats(0, 5), st.floats(0.1, 5), st.floats(-15, 15))
@settings(derandomize=True, deadline=None, max_examples=60)
def test_it_is_1_on_policy_and_nowhere_larger_than_at_k_over_lambda(
    k: float, decay: float, log_weight: float
) -> None:
    at = gamma_kernel(torch.tensor([0.0, log_weight], dtype=F64), k, decay)
    largest = math.exp(decay - k) * ((k / decay) ** k if k else 1.0)
    assert at[0].item() == 1.0
    assert 0 <= at[1].item() <= largest * (1 + 1e-12)


@pytest.mark.parametrize("log_ratio", [-1e6, -700.0, 700.0, 1e6])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_a_response_that_ran_away_has_no_gradient(log_ratio: float, dtype: torch.dtype) -> None:
    log_prob = torch.full((1, 2), -1.0, dtype=dtype, requires_grad=True)
    old = log_prob.detach() - log_ratio
    vespo_loss(log_prob, old, torch.ones(1, 2, dtype=dtype), torch.ones(1, 2), **KERNEL).sum().backward()
    # e^{−3 e^{20}} is 0; the lower limit of W, 1e-8, leaves (1e-8)² e³ = 2e-15
    assert log_prob.grad is not None
    assert log_prob.grad.abs().max() <= 2.1e-15
