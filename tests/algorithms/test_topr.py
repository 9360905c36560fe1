"""Test TOPR's loss where a policy has run away, and on a table of a whole policy."""

import math

import pytest
import torch

from grpo_verl_ext.algorithms.off_policy import topr_loss

F64 = torch.float64


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize(
    ("log_ratio", "advantage", "expected"), [(1e6, 1.0, 1), (1e6, -1.0, 1), (-1e6, -1.0, 0)]
)
def test_no_weight_leaves_0_to_1(
    log_ratio: float, advantage: float, expected: float, dtype: torch.dtype
) -> None:
    log_prob = torch.full((1, 2), -1.0, dtype=dtype, requires_grad=True)
    topr_loss(
        log_prob, log_prob.detach() - log_ratio, torch.full((1, 2), advantage, dtype=dtype), torch.ones(1, 2)
    ).sum().backward()
    assert log_prob.grad is not None
    assert log_prob.grad.tolist() == [[-expected * advantage] * 2]


def test_a_bad_response_alone_is_given_up_and_not_run_from() -> None:
    """One step of 0.5 per update on π = σ(x) of a response with A = −1, sampled where π was ½.

    REINFORCE without the taper moves x by −½ (1 − π) for ever, here to −24; with it x falls like −log of
    the steps, since the weight is 2π.
    """
    with_taper = without = torch.tensor(0.0, dtype=F64)
    for _ in range(50):
        with_taper, without = (
            _after_a_step(x, taper=taper) for x, taper in ((with_taper, True), (without, False))
        )
    assert without < -20
    # dx/dn = −½ · 2 e^x for small π, so e^{−x} is near 1 + n
    assert with_taper.item() == pytest.approx(-math.log(51), abs=0.5)


def _after_a_step(x: torch.Tensor, *, taper: bool) -> torch.Tensor:
    x = x.detach().requires_grad_()
    log_prob = torch.nn.functional.logsigmoid(x).reshape(1, 1)
    old = torch.full((1, 1), math.log(0.5) if taper else -1e6, dtype=F64)
    topr_loss(log_prob, old, -torch.ones(1, 1, dtype=F64), torch.ones(1, 1)).sum().backward()
    assert x.grad is not None
    return x.detach() - 0.5 * x.grad
