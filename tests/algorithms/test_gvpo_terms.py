"""Test GVPO's three terms against the loss, and the ablation that drops one."""

from collections.abc import Callable

import numpy as np
import oracles
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from grpo_verl_ext import gvpo, gvpo_terms

F64 = torch.float64
BETA = 0.3
REWARDS = torch.tensor([1.0, 0.2, 0.5], dtype=F64)
ANCHOR = torch.tensor([0.1, -0.7, 0.4], dtype=F64).log_softmax(0)

finite = st.floats(-4, 4, allow_subnormal=False)
prompts = st.lists(
    st.lists(st.tuples(finite, finite, finite), min_size=1, max_size=5), min_size=1, max_size=3
)


def deviation(values: Tensor) -> Tensor:
    return values - values.mean(-1, keepdim=True)


def moments_of(rewards: Tensor, log_prob: Tensor, anchor: Tensor, beta: float) -> gvpo_terms.Moments:
    """Of groups of k, (…, k) each; the mean log-ratio of a group is a constant, as in the plugin."""
    targets, ratio = deviation(rewards), log_prob - anchor
    residual = gvpo.residual(ratio, targets, ratio.detach().mean(-1, keepdim=True), beta)
    return gvpo_terms.Moments.of(residual, targets, deviation(anchor), rewards.shape[-1], beta)


@given(prompts, st.sampled_from([0.05, 0.1, 1.0, 3.0]))
def test_the_moments_are_the_covariances_and_the_terms_have_the_gradient_of_the_loss(groups, beta):
    for group in groups:
        rewards, log_prob, anchor = torch.tensor(group, dtype=F64).T
        log_prob = log_prob.clone().requires_grad_()
        moments = moments_of(rewards, log_prob, anchor, beta)
        # The paper's sum, line by line.
        terms = (
            -beta * moments.cov_reward_log_prob
            - beta**2 * moments.cov_log_prob_anchor
            + 0.5 * beta**2 * moments.var_log_prob
        ).sum()
        (gradient,) = torch.autograd.grad(terms, log_prob)

        ratios = (log_prob.detach() - anchor).tolist()
        expected = oracles.gvpo_prompt_gradient(rewards.tolist(), ratios, beta)
        assert gradient.tolist() == pytest.approx(expected, rel=1e-11, abs=1e-11)
        if len(group) == 1:
            assert all(moment.item() == 0 for moment in moments)
            continue
        implicit = beta * (log_prob.detach() - anchor)
        table = torch.cov(torch.stack((rewards, log_prob.detach(), anchor, implicit)))
        r, p, q, f = range(4)
        wanted = [table[pair].item() for pair in [(r, p), (p, q), (p, p), (r, r), (f, f), (r, f)]]
        assert [moment.sum().item() for moment in moments] == pytest.approx(wanted, rel=1e-11, abs=1e-11)
        constant = 0.5 * table[r, r] + beta * table[r, q] + 0.5 * beta**2 * table[q, q]
        loss = oracles.gvpo_prompt_loss(rewards.tolist(), ratios, beta)
        assert terms.item() + constant.item() == pytest.approx(loss, rel=1e-10, abs=1e-10)


# --------------------------------------------------------------------------------------- without a term


@given(prompts.filter(lambda groups: any(len(group) > 1 for group in groups)))
def test_their_gradients_are_those_of_the_terms_that_are_left(groups):
    left: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
        "without_variance": lambda r, p, q: -BETA * cov(r, p) - BETA**2 * cov(p, q),
        "without_covariance": lambda r, p, q: -BETA * cov(r, p) + 0.5 * BETA**2 * cov(p, p),
    }
    for group in (group for group in groups if len(group) > 1):
        rewards, log_prob, anchor = torch.tensor(group, dtype=F64).T
        log_prob = log_prob.clone().requires_grad_()
        for name, loss in gvpo_terms.ABLATED_LOSSES.items():
            found = loss(moments_of(rewards, log_prob, anchor, BETA), BETA).sum()
            expected = left[name](rewards, log_prob, anchor)
            assert found.item() == pytest.approx(expected.item(), rel=1e-11, abs=1e-11)
            gradients = [torch.autograd.grad(value, log_prob)[0].tolist() for value in (found, expected)]
            assert gradients[0] == pytest.approx(gradients[1], rel=1e-11, abs=1e-11)


def cov(one: Tensor, other: Tensor) -> Tensor:
    """With gradient through the means."""
    return ((one - one.mean()) * (other - other.mean())).sum() / (len(one) - 1)


# ---------------------------------------------------------------------------------------------- the fit


def test_the_fit_is_least_squares_with_an_intercept_for_each_prompt():
    rewards, log_prob, anchor = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0), dtype=F64)
    moments = moments_of(rewards, log_prob, anchor, BETA)
    found = gvpo_terms.implicit_reward_fit(*(moment.sum(-1).mean().item() for moment in moments[3:]))

    implicit = (BETA * (log_prob - anchor)).numpy().ravel()
    intercepts = np.kron(np.eye(5), np.ones((4, 1)))
    design = np.column_stack((rewards.numpy().ravel(), intercepts))
    (slope, *means), (left,), *_ = np.linalg.lstsq(design, implicit, rcond=None)
    (_, (whole,), *_) = np.linalg.lstsq(intercepts, implicit, rcond=None)
    assert len(means) == 5
    assert found == pytest.approx((slope, 1 - left / whole), rel=1e-10)


def test_the_optimum_fits_and_the_anchor_explains_nothing():
    at_optimum = moments_of(REWARDS, (ANCHOR + REWARDS / BETA).log_softmax(0), ANCHOR, BETA)
    assert gvpo_terms.implicit_reward_fit(*(m.sum().item() for m in at_optimum[3:])) == pytest.approx(
        (1, 1), rel=1e-12
    )
    at_anchor = moments_of(REWARDS, ANCHOR, ANCHOR, BETA)
    assert gvpo_terms.implicit_reward_fit(*(m.sum().item() for m in at_anchor[3:])) == (0, 0)
    assert gvpo_terms.implicit_reward_fit(0.0, 2.0, 0.0) == (0, 0), "rewards that do not vary"
    assert gvpo_terms.implicit_reward_fit(6e-15, 2.0, 3e-8) == (0, 0), "but for fp32's rounding"
    assert gvpo_terms.implicit_reward_fit(1e-6, 2.0, 1e-6)[0] == 1, "rewards that hardly do"
