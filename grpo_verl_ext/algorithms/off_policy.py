"""Losses for responses of another policy than the one that is trained: (B, T) → (B, T), to be minimised.

Gradient flows through ``log_prob`` alone; weights are constants. π is the policy, μ the one that wrote the
response, by its engine's log-probs, and π_old the policy before the updates.
"""

import torch
from torch import Tensor

from grpo_verl_ext.algorithms.gvpo import sequence_log_ratio
from grpo_verl_ext.algorithms.surrogate import clipped_surrogate, reinforced, token_log_ratio
from grpo_verl_ext.algorithms.validation import check_floating


def topr_loss(log_prob: Tensor, old_log_prob: Tensor, advantages: Tensor, response_mask: Tensor) -> Tensor:
    """ℓ_{i,t} = −w_i A_i log π_θ(y_{i,t}), to be minimised: (B, T) → (B, T), 0 under the mask.

    w_i, a constant, is 1 where A_i ≥ 0, else min(W_i, 1) with W_i = Π_t π_θ(y_{i,t}) / π_old(y_{i,t}) over
    the tokens of response i, not normalised by its length: a bad response that the policy has given up is
    pushed no further, and a good one is learned however improbable it has become. Gradient flows through
    ``log_prob`` alone; summed over tokens it is −w_i A_i ∇log π_θ(y_i).

    Le Roux et al., Tapered Off-Policy REINFORCE, arXiv 2503.14286, the gradient of J_TOPR, with A in the
    place of the reward minus a baseline.
    """
    check_floating(log_prob=log_prob, advantages=advantages)
    log_weight = sequence_log_ratio(log_prob.detach(), old_log_prob, response_mask).unsqueeze(-1)
    weight = torch.where(advantages >= 0, 1.0, log_weight.clamp(max=0).exp())
    return reinforced(weight, log_prob, advantages, response_mask)


def bpo_loss(
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    *,
    clip_ratio_low: float,
    clip_ratio_high: float,
    smoothing: float,
    cap: float,
) -> Tensor:
    """ℓ = −min(ω, cap) A log π with ω = (1 + s − π_old)/(1 + s − π), 0 where the clip cuts: (B, T) → (B, T).

    It cuts ω < 1 − ε_low where A < 0, and ω > 1 + ε_high where A > 0: the ratio of the other tokens'
    probability bounds a step, so that rare tokens move freely and likely ones do not. s is ``smoothing``.
    Bellman Policy Optimization, arXiv 2609.15987, as TRL's draft has it.
    """
    check_floating(log_prob=log_prob, advantages=advantages)
    both, one = (old_log_prob, log_prob.detach()), torch.zeros_like(log_prob)
    old, now = (smoothing - token_log_ratio(each, one, response_mask).expm1() for each in both)
    weight = old / now
    too_low = (weight < 1 - clip_ratio_low) & (advantages < 0)
    too_high = (weight > 1 + clip_ratio_high) & (advantages > 0)
    weight = weight.clamp(max=cap).masked_fill(too_low | too_high, 0)
    return reinforced(weight, log_prob, advantages, response_mask)


def icepop_surrogate(
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    rollout_log_prob: Tensor,
    *,
    alpha: float,
    beta: float,
    **clip: float,
) -> Tensor:
    """ℓ = M(κ) times `surrogate.clipped_surrogate` with the range ``clip``, κ = π_old/μ: (B, T) → (B, T).

    M(κ) = κ where α ≤ κ ≤ β, else 0: tokens on which the two engines disagree are left out.
    IcePop, in Ling Team, Every Step Evolves, arXiv 2510.18855.
    """
    weight = token_log_ratio(old_log_prob, rollout_log_prob, response_mask).exp()
    loss = clipped_surrogate(log_prob, old_log_prob, advantages, response_mask, **clip)
    return torch.where((alpha <= weight) & (weight <= beta), weight * loss, 0)


def ipo_surrogate(
    log_prob: Tensor,
    _old_log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    rollout_log_prob: Tensor,
    *,
    eps: float,
    kl_tau: float,
) -> Tensor:
    """ℓ = −1(|π − μ| ≤ ε) A ρ + τ (log ρ)², ρ = π/μ: (B, T) → (B, T); the indicator is a constant.

    The default loss of prime-rl since August 2026, ``ipo``.
    """
    check_floating(log_prob=log_prob, advantages=advantages)
    log_ratio, mask = token_log_ratio(log_prob, rollout_log_prob, response_mask), response_mask.bool()
    near = (log_prob.detach().exp() - rollout_log_prob.exp()).abs() <= eps
    return torch.where(near & mask, -advantages, 0) * log_ratio.exp() + kl_tau * log_ratio.square()
