"""Test that losses through verl's worker equal their papers' formulas in float64, at every cut.

The formulas are written out here, one response at a time, and PyTorch differentiates them. The rollout has
masks with holes, a response without tokens and groups of four and three; its cuts are those of `invariance`.
"""

import math
from collections.abc import Callable

import pytest
import torch
from mini_batches import actor_config, ragged_batch, value_and_gradient
from torch import Tensor

from grpo_verl_ext.proof.batch import MAX_RESPONSE_LENGTH, SPLITS, Rollout, cut
from grpo_verl_ext.proof.invariance import OUR_CASES, PRESET_CASES

F64 = torch.float64
CASES = {case.name: case for case in (*OUR_CASES, *PRESET_CASES)}


def luspo(now: Tensor, old: Tensor, advantage: Tensor) -> Tensor:
    ratio = (now - old).mean().exp()
    return -len(now) * torch.minimum(ratio * advantage, ratio.clamp(1 - 2e-3, 1 + 2.5e-3) * advantage)


def vespo(now: Tensor, old: Tensor, advantage: Tensor) -> Tensor:
    weight, (k, decay) = (now - old).detach().sum().exp(), (2, 3) if advantage >= 0 else (3, 2)
    return -(weight**k * (decay * (1 - weight)).exp() * advantage * now).sum()


def total_variation(now: Tensor, old: Tensor, advantage: Tensor) -> bool:
    return bool(advantage.sign() * (now.exp() - old.exp()) > 0.15)


def binary_kl(now: Tensor, old: Tensor, advantage: Tensor) -> bool:
    p, q = old.exp().item(), now.exp().item()
    divergence = p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))
    return bool(advantage.sign() * (q - p) > 0) and divergence > 0.05


def dppo(masked: Callable[[Tensor, Tensor, Tensor], bool]) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """A token has the policy gradient with its ratio, or none: where it left the region, away from it."""

    def loss(now: Tensor, old: Tensor, advantage: Tensor) -> Tensor:
        kept = torch.tensor([not masked(n, o, advantage) for n, o in zip(now.detach(), old, strict=True)])
        return -((now - old).detach().exp() * advantage * now)[kept].sum()

    return loss


def topr(now: Tensor, old: Tensor, advantage: Tensor) -> Tensor:
    weight = 1.0 if advantage >= 0 else min((now - old).sum().exp().item(), 1.0)
    return -weight * advantage * now.sum()


def kimi(now: Tensor, old: Tensor, advantage: Tensor) -> Tensor:
    log_ratio = (now - old).sum()
    return 0.05 * log_ratio**2 - advantage * log_ratio


def dual_clip(now: Tensor, old: Tensor, advantage: Tensor) -> Tensor:
    """MaxRL's: PPO's loss with its range and verl's dual clip."""
    ratio = (now - old).exp()
    loss = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    return (torch.minimum(loss, -3 * advantage) if advantage < 0 else loss).sum()


RESPONSES, TOKENS, BUDGET = "responses", "tokens", "responses × budget"
FORMULAS: dict[str, tuple[Callable[[Tensor, Tensor, Tensor], Tensor], str]] = {
    "luspo": (luspo, RESPONSES),
    "vespo": (vespo, TOKENS),
    "dppo": (dppo(total_variation), BUDGET),
    "dppo_kl": (dppo(binary_kl), BUDGET),
    "topr": (topr, RESPONSES),
    "kimi": (kimi, RESPONSES),
    "maxrl": (dual_clip, TOKENS),
}
"""Preset → the loss of one response, and what its sum is divided by."""


def by_the_formula(name: str, batch: Rollout) -> tuple[Tensor, Tensor]:
    """Value, and the gradient of every token's log-prob."""
    log_prob, (of_response, divisor) = batch.log_prob.clone().requires_grad_(), FORMULAS[name]
    total = torch.zeros((), dtype=F64)
    for row, mask in enumerate(batch.response_mask.bool()):
        now, old = log_prob[row][mask], batch.old_log_prob[row][mask]
        if len(now):
            total = total + of_response(now, old, batch.advantages[row][mask][0])
    tokens, responses = int(batch.response_mask.sum()), len(batch.lengths)
    sizes = {RESPONSES: responses, TOKENS: tokens, BUDGET: responses * MAX_RESPONSE_LENGTH}
    value = total / sizes[divisor]
    (gradient,) = torch.autograd.grad(value, log_prob)
    return value.detach(), gradient[batch.given]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", FORMULAS)
def test_equals_the_formula_at_every_cut(name: str, seed: int) -> None:
    batch = ragged_batch(F64, seed)
    wanted_value, wanted = by_the_formula(name, batch)
    for split in SPLITS:
        config = actor_config(CASES[name], use_kl_loss=False, use_dynamic_bsz=split == "dynamic")
        for dp_size in (1, 2, 4):
            value, gradient = value_and_gradient(config, batch, cut(batch.lengths, split, dp_size))
            # Losses whose value is a sum of both signs are measured by the size of their gradient.
            assert abs(value - wanted_value) <= 1e-12 * max(abs(wanted_value), wanted.abs().sum())
            assert (gradient - wanted).abs().max() <= 1e-12 * wanted.abs().max(), (split, dp_size)
