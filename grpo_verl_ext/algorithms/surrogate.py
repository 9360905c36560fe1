"""Clipped policy-gradient surrogates, token by token; reduce them with a function of `aggregation`.

ρ_{i,t} = π_θ / π_old = exp(log_prob − old_log_prob). Gradient flows through ``log_prob`` alone. Whatever
stands under the mask, NaN and infinities included, reaches neither value nor gradient. Log-ratios are
limited to ±20, where exp fits bf16 and fp32; beyond it a token has value but no gradient, as in verl. In
fp16 gradients of more than 65,504 are infinite, from a log-ratio of 11 on.

Raises:
    TensorError: shapes that differ, or advantages that are integers.
        NaN that is not under the mask is not refused: it makes the token's loss NaN.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from grpo_verl_ext.algorithms.validation import check_floating, check_same_shape

_LOG_RATIO_LIMIT = 20.0


def token_log_ratio(log_prob: Tensor, old_log_prob: Tensor, response_mask: Tensor) -> Tensor:
    """log ρ = log_prob − old_log_prob within ±20, 0 under the mask: (B, T) → (B, T), nats, fp32 or better."""
    check_floating(log_prob=log_prob, old_log_prob=old_log_prob)
    check_same_shape(log_prob=log_prob, response_mask=response_mask)
    wide = torch.promote_types(log_prob.dtype, torch.float32)
    log_ratio = torch.where(response_mask.bool(), log_prob.to(wide) - old_log_prob.to(wide), 0)
    return log_ratio.clamp(-_LOG_RATIO_LIMIT, _LOG_RATIO_LIMIT)


def clipped_surrogate(
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    *,
    clip_ratio_low: float,
    clip_ratio_high: float,
    clip_ratio_c: float | None = None,
) -> Tensor:
    """ℓ_{i,t} = −min[ρ A, clip(ρ, 1 − ε_low, 1 + ε_high) A], to be minimised: (B, T) → (B, T).

    GRPO, arXiv 2402.03300 eq. 3 (ε_low = ε_high); DAPO, arXiv 2503.14476 eq. 10 ("clip higher").
    With c > 1 min(ℓ, −c A) where A < 0: it bounds the loss of a token with negative advantage whose ratio ran
    away; no gradient there. Dual-clip PPO, arXiv 1912.09729 eq. 5.
    """
    check_floating(log_prob=log_prob, advantages=advantages)
    ratio = token_log_ratio(log_prob, old_log_prob, response_mask).exp()
    costs = torch.where(response_mask.bool(), -advantages, 0)
    loss = torch.maximum(ratio * costs, ratio.clamp(1 - clip_ratio_low, 1 + clip_ratio_high) * costs)
    if clip_ratio_c is None:
        return loss
    # NaN < 0 is false, so what stands under the mask bounds nothing.
    return torch.minimum(loss, torch.where(advantages < 0, -float(clip_ratio_c) * advantages, torch.inf))


def reinforced(weight: Tensor, log_prob: Tensor, advantages: Tensor, response_mask: Tensor) -> Tensor:
    """−w A log π, 0 under the mask: (B, T) → (B, T), fp32 or better; w is a constant; shapes are checked."""
    mask, wide = response_mask.bool(), log_prob.to(torch.promote_types(log_prob.dtype, torch.float32))
    return torch.where(mask, -weight * advantages, 0) * torch.where(mask, wide, 0)


def geometric_mean_surrogate(
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    *,
    log_clip_low: float,
    log_clip_high: float,
) -> Tensor:
    """ℓ_{i,t} = −A_{i,t} exp(1/|o_i| Σ_s x_{i,s}), to be minimised: (B, T) → (B, T).

    x = min(log ρ, ε_high) where A > 0 and max(log ρ, −ε_low) where A < 0: each token is clipped before the
    geometric mean, at ε in nats. All tokens of a response have its loss; reduce with
    `aggregation.sequence_mean_token_mean`, which gives the paper's.
    GMPO, arXiv 2507.20673. Differs from verl's ``geo_mean``, which averages over the responses of the
    micro-batch at hand.
    """
    check_floating(log_prob=log_prob, advantages=advantages)
    log_ratio = token_log_ratio(log_prob, old_log_prob, response_mask)
    costs = torch.where(response_mask.bool(), -advantages, 0)
    above, below = log_ratio.clamp(max=log_clip_high), log_ratio.clamp(min=-log_clip_low)
    clipped = torch.where(costs < 0, above, below)
    length = response_mask.sum(dim=-1, keepdim=True).clamp(min=1)
    return costs * (clipped.sum(dim=-1, keepdim=True) / length).exp()


@torch.no_grad()
def off_policy_mask(
    log_prob: Tensor, old_log_prob: Tensor, advantages: Tensor, response_mask: Tensor, *, threshold: float
) -> Tensor:
    """M_{i,t} = 0 where A_{i,t} < 0 and 1/|o_i| Σ_s log π_old/π_θ > δ, else 1: (B, T) → (B, T) bool.

    Multiplied with a loss it drops responses that were bad and that the policy has since left; denominators
    stay. δ, ``threshold``, in nats per token. DeepSeek-V3.2, arXiv 2512.02556; TRL's
    ``off_policy_mask_threshold``.
    """
    left = -token_log_ratio(log_prob, old_log_prob, response_mask).sum(dim=-1, keepdim=True)
    length = response_mask.sum(dim=-1, keepdim=True).clamp(min=1)
    return (advantages >= 0) | (left <= threshold * length)


class TokenEvents(NamedTuple):
    """Events of each token, (B, T) bool each, False under the mask; their token means are metrics.

    Attributes:
        clipped_low: A < 0 and ρ < 1 − ε_low: the clip removed the gradient.
        clipped_high: A > 0 and ρ > 1 + ε_high: the clip removed the gradient.
        dual_clipped: A < 0 and ρ > c: the dual clip removed the gradient; all False without one.
        zero_advantage: A = 0: the policy term gives the token no gradient.
    """

    clipped_low: Tensor
    clipped_high: Tensor
    dual_clipped: Tensor
    zero_advantage: Tensor


@torch.no_grad()
def token_events(
    log_ratio: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    *,
    clip_ratio_low: float,
    clip_ratio_high: float,
    clip_ratio_c: float | None = None,
) -> TokenEvents:
    """Return which tokens the clips cut off and which had no advantage, from the `token_log_ratio`."""
    mask, ratio = response_mask.bool(), log_ratio.exp()
    worse, better = mask & (advantages < 0), mask & (advantages > 0)
    return TokenEvents(
        clipped_low=worse & (ratio < 1 - clip_ratio_low),
        clipped_high=better & (ratio > 1 + clip_ratio_high),
        dual_clipped=worse & (ratio > (torch.inf if clip_ratio_c is None else clip_ratio_c)),
        zero_advantage=mask & (advantages == 0),
    )


def geometric_mean_events(
    log_ratio: Tensor, advantages: Tensor, response_mask: Tensor, *, log_clip_low: float, log_clip_high: float
) -> TokenEvents:
    """Return the `token_events` of `geometric_mean_surrogate`: ρ is kept within [e^{−ε_low}, e^{ε_high}]."""
    return token_events(
        log_ratio,
        advantages,
        response_mask,
        clip_ratio_low=-math.expm1(-log_clip_low),
        clip_ratio_high=math.expm1(min(log_clip_high, _LOG_RATIO_LIMIT)),
    )
