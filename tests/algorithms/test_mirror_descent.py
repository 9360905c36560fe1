"""Test policy mirror descent under the mask, its minimum on a table, and where it differs from GVPO."""

import math

import pytest
import torch
from torch import Tensor

from grpo_verl_ext.algorithms import gvpo
from grpo_verl_ext.algorithms.mirror_descent import mirror_descent_loss

F64 = torch.float64
TAU = 0.5
REWARDS = torch.tensor([0.0, 0.1, 0.4, 1.0], dtype=F64)
OLD = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=F64)


def test_what_stands_under_the_mask_does_not_count() -> None:
    log_prob = torch.tensor([[-1.0, math.nan, -2.0], [math.inf, 0.0, 0.0]], dtype=F64, requires_grad=True)
    old = torch.tensor([[-2.0, 0.0, -5.0], [math.nan, 0.0, 0.0]], dtype=F64)
    advantages = torch.tensor([[2.0, math.nan, 2.0], [math.nan, 0.0, 0.0]], dtype=F64)
    loss = mirror_descent_loss(log_prob, old, advantages, torch.tensor([[1, 0, 1], [0, 0, 0]]), tau=TAU)
    # Δ = 1 + 3: (½ · ½ · 4 − 2) · 1 and · 3
    assert loss.tolist() == [[-1.0, 0.0, -3.0], [0.0] * 3]
    loss.sum().backward()
    assert log_prob.grad is not None
    assert log_prob.grad.tolist() == [[0.0] * 3, [0.0] * 3], "τ Δ = A"


def test_the_squared_error_without_its_constant() -> None:
    rows = torch.tensor([[0.3, -0.2], [1.5, 0.0]], dtype=F64)
    advantages = torch.tensor([0.7, -0.4], dtype=F64)
    mask = torch.tensor([[1, 1], [1, 0]])
    loss = mirror_descent_loss(rows, torch.zeros_like(rows), advantages[:, None].expand(2, 2), mask, tau=TAU)
    error = (advantages - TAU * torch.tensor([0.1, 1.5], dtype=F64)).square() / (2 * TAU)
    assert (loss.sum(-1) + advantages.square() / (2 * TAU)).tolist() == pytest.approx(
        error.tolist(), rel=1e-14
    )


def minimiser(baseline: Tensor) -> Tensor:
    """The policy over four responses with the least expected loss, whose gradient is then 0 to 1e-10."""
    logits = OLD.log().clone().requires_grad_()
    solver = torch.optim.LBFGS(
        [logits], lr=1, max_iter=500, tolerance_grad=1e-13, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        solver.zero_grad()
        loss = mirror_descent_loss(
            logits.log_softmax(0)[:, None],
            OLD.log()[:, None],
            (REWARDS - baseline)[:, None],
            torch.ones(4, 1),
            tau=TAU,
        )
        whole = (OLD * loss[:, 0]).sum()
        whole.backward()
        return whole

    solver.step(closure)
    assert logits.grad is not None
    assert logits.grad.abs().max() < 1e-10
    return logits.detach().softmax(0)


def test_with_tau_log_z_the_minimum_is_the_tilted_policy() -> None:
    """arXiv 2501.12599 §2.3.2: π* ∝ π_old e^{R/τ}, of which τ log Z is the normaliser."""
    tilted = OLD * (REWARDS / TAU).exp()
    found = minimiser(TAU * tilted.sum().log())
    assert found.tolist() == pytest.approx((tilted / tilted.sum()).tolist(), abs=1e-9)


def test_with_the_mean_reward_it_is_another_one_and_gvpos_is_not() -> None:
    """R̄ < τ log Z, so that all log-ratios are too large, which no policy can have."""
    tilted = OLD * (REWARDS / TAU).exp()
    tilted /= tilted.sum()
    found = minimiser((OLD * REWARDS).sum())
    assert (found - tilted).abs().sum() / 2 > 0.01
    log_ratio = tilted.log() - OLD.log()
    drift, mean = (OLD * log_ratio).sum(), (OLD * REWARDS).sum()
    assert gvpo.residual(log_ratio, REWARDS - mean, drift, TAU).abs().max() < 1e-14
