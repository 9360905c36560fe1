"""Test the minimum of policy mirror descent on a table, and where it differs from GVPO."""

import pytest
import torch
from torch import Tensor

from grpo_verl_ext.algorithms import gvpo
from grpo_verl_ext.algorithms.regression import mirror_descent_loss

F64 = torch.float64
TAU = 0.5
REWARDS = torch.tensor([0.0, 0.1, 0.4, 1.0], dtype=F64)
OLD = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=F64)


def minimiser(baseline: Tensor) -> Tensor:
    """The policy over four responses with the least expected loss, whose gradient is then 0 to 1e-10."""
    logits = OLD.log().clone().requires_grad_()
    solver = torch.optim.LBFGS(
        [logits], lr=1, max_iter=500, tolerance_grad=1e-13, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        solver.zero_grad()
        rows = (logits.log_softmax(0), OLD.log(), REWARDS - baseline, torch.ones(4))
        loss = mirror_descent_loss(*(each[:, None] for each in rows), tau=TAU)
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
    assert (minimiser((OLD * REWARDS).sum()) - tilted).abs().sum() / 2 > 0.01
    log_ratio = tilted.log() - OLD.log()
    drift, mean = (OLD * log_ratio).sum(), (OLD * REWARDS).sum()
    assert gvpo.residual(log_ratio, REWARDS - mean, drift, TAU).abs().max() < 1e-14
