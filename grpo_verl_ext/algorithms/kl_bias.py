"""Bias of the estimators in `kl`, computed over the whole vocabulary and so without sampling noise.

At a position the policy π = softmax(logits) gives every token v a probability, so the mean of an estimator
over x ~ π, and the mean of its gradient in a loss, where the drawn token is held fixed, are finite sums:

    E[k] = Σ_v π(v) k(v),      E[∇k] = Σ_v π(v) ∇k(v),      ∇ with respect to the logits.

The second is not the gradient of the first, which would also move π(v). E[∇k1] = 0: as a loss, k1 has no
effect on average. E[∇k2] = ∇KL(π ‖ π_ref), as wanted. E[∇k3] = ∇KL(π_ref ‖ π) = π − π_ref, the gradient of
the KL in the other direction. All of this holds up to the ±20 to which `kl` limits log-ratios.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from grpo_verl_ext.algorithms.kl import exact

Estimator = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(log_prob, ref_log_prob, mask) → nats, elementwise: `kl.k1`, `kl.k2`, `kl.k3`."""


class Divergence(NamedTuple):
    """A KL, or an estimate of it, at N positions, with its gradient.

    Attributes:
        value: (N,) nats.
        gradient: (N, V), of each position's value with respect to its logits.
    """

    value: Tensor
    gradient: Tensor


def expected(estimator: Estimator, logits: Tensor, ref_logits: Tensor) -> Divergence:
    """E[k] and E[∇k] over a token from π at each of N positions: (N, V) → constants, in the logits' dtype."""
    logits = logits.detach().requires_grad_()
    log_prob, ref_log_prob = logits.log_softmax(dim=-1), ref_logits.log_softmax(dim=-1)
    estimates = estimator(log_prob, ref_log_prob, torch.ones_like(logits))
    return _divergence((log_prob.detach().exp() * estimates).sum(dim=-1), logits)


def true(logits: Tensor, ref_logits: Tensor) -> Divergence:
    """KL(π ‖ π_ref), `kl.exact`, and its gradient at each of N positions: (N, V) → constants."""
    logits = logits.detach().requires_grad_()
    mask = torch.ones(1, len(logits), device=logits.device)
    return _divergence(exact(logits.unsqueeze(0), ref_logits.unsqueeze(0), mask).squeeze(0), logits)


def _divergence(value: Tensor, logits: Tensor) -> Divergence:
    (gradient,) = torch.autograd.grad(value.sum(), logits)
    return Divergence(value.detach(), gradient)
