"""Test KL estimators: against verl's; their biases are in test_kl_bias.py."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from verl.trainer.ppo.core_algos import kl_penalty

from grpo_verl_ext import k1, k2, k3, with_k2_gradient
from grpo_verl_ext.algorithms import kl
from grpo_verl_ext.algorithms.kl import token_means

F64 = torch.float64
LN2 = math.log(2)
EVERYWHERE = torch.ones(1, 1)


def value_and_gradient(estimator, p: float, q: float, mask: Tensor = EVERYWHERE) -> tuple[float, float]:
    log_prob = torch.tensor([[p]], dtype=F64, requires_grad=True)
    kl = estimator(log_prob, torch.tensor([[q]], dtype=F64), mask)
    kl.sum().backward()
    return kl.item(), log_prob.grad.item()


@pytest.mark.parametrize("estimator", [k1, k2, k3])
def test_straight_through_has_its_own_value_and_the_gradient_of_k2(estimator):
    def straight_through(p, q, mask):
        return with_k2_gradient(estimator(p, q, mask), p, q, mask)

    value, gradient = value_and_gradient(straight_through, -0.3, -1.0)
    assert value == pytest.approx(value_and_gradient(estimator, -0.3, -1.0)[0], abs=1e-15)
    assert gradient == pytest.approx(0.7, abs=1e-15)


@pytest.mark.parametrize(
    ("estimator", "verl_name"), [(k1, "kl"), (k2, "mse"), (k3, "low_var_kl"), (k1, "k1+"), (k3, "k3+")]
)
def test_equals_verl_where_verl_does_not_cut(estimator, verl_name):
    log_prob = torch.linspace(-2, 2, 9, dtype=F64).unsqueeze(0).requires_grad_()
    ref, mask = torch.zeros(1, 9, dtype=F64), torch.ones(1, 9)
    ours = estimator(log_prob, ref, mask)
    if verl_name.endswith("+"):
        ours = with_k2_gradient(ours, log_prob, ref, mask)
    verls = kl_penalty(log_prob, ref, verl_name)
    torch.testing.assert_close(ours, verls, rtol=0, atol=1e-14)
    gradients = [torch.autograd.grad(kl.sum(), log_prob)[0] for kl in (ours, verls)]
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-14)


@pytest.mark.parametrize("estimator", [k1, k2, k3])
@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf])
def test_garbage_under_the_mask_reaches_neither_value_nor_gradient(estimator, garbage):
    nowhere = torch.zeros(1, 1)
    assert value_and_gradient(estimator, garbage, 0.0, nowhere) == (0, 0)
    assert value_and_gradient(estimator, 0.0, garbage, nowhere) == (0, 0)


@pytest.mark.parametrize("estimator", [k1, k2, k3])
@pytest.mark.parametrize("p", [-1e3, 1e3])
def test_extreme_log_ratios_stay_finite(estimator, p):
    value, gradient = value_and_gradient(estimator, p, 0.0)
    assert math.isfinite(value)
    assert gradient == 0


def test_k3_keeps_its_precision_near_zero():
    # k3 ≈ x²/2 there; e^x − x − 1 computed as written would leave nothing of 5e-17.
    assert value_and_gradient(k3, 1e-8, 0.0)[0] == pytest.approx(5e-17, rel=1e-6, abs=0)


log_probs = st.floats(-30, 0, allow_subnormal=False)


@given(st.lists(st.tuples(log_probs, log_probs, st.booleans()), max_size=9), st.integers(1, 4))
def test_token_means_are_those_of_the_formulas_over_the_tokens(tokens, block):
    # Rows of several blocks, NaN under the mask; one estimator limits p − q to ±20, the oracle does so too.
    p, q = (torch.tensor([each[i] if each[2] else math.nan for each in tokens], dtype=F64) for i in (0, 1))
    mask = torch.tensor([int(each[2]) for each in tokens], dtype=torch.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kl, "BLOCK", block)
        found = {name: mean.item() for name, mean in token_means(p, q, mask).items()}
    ratios = [max(-20.0, min(20.0, a - b)) for a, b, present in tokens if present]
    formulas = {"k1": lambda r: r, "k2": lambda r: r * r / 2, "k3": lambda r: math.exp(-r) + r - 1}
    for name, formula in formulas.items():
        expected = math.fsum(map(formula, ratios)) / max(1, len(ratios))
        assert found.pop(name) == pytest.approx(expected, rel=1e-12, abs=1e-13)
    assert not found


def test_token_means_of_padded_rows_and_of_the_same_rows_end_to_end_are_one_number():
    p, q = -torch.rand(2, 5, 7, generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(7) < torch.tensor([[7], [1], [0], [3], [5]])).long()
    padded, flat = token_means(p, q, mask), token_means(*(x[mask.bool()] for x in (p, q, mask)))
    assert padded.keys() == flat.keys() == {"k1", "k2", "k3"}
    for name, mean in padded.items():
        assert mean.dtype == F64
        assert mean.item() == pytest.approx(flat[name].item(), rel=1e-15)
