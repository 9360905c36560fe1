"""Losses that fit log-ratios to rewards: a squared error, not a clip, keeps the policy near π_old."""

import torch
from torch import Tensor

from grpo_verl_ext.algorithms.gvpo import sequence_log_ratio
from grpo_verl_ext.algorithms.surrogate import reinforced, token_log_ratio
from grpo_verl_ext.algorithms.validation import check_floating


def mirror_descent_loss(
    log_prob: Tensor, old_log_prob: Tensor, advantages: Tensor, response_mask: Tensor, *, tau: float
) -> Tensor:
    """ℓ_{i,t} = (½ τ Δ_i − A_i) δ_{i,t}, to be minimised: (B, T) → (B, T), 0 under the mask.

    δ_{i,t} = log π_θ(y_{i,t}) − log π_old(y_{i,t}) and Δ_i = Σ_t δ_{i,t}, in nats, so that a response's
    tokens sum to ½ τ Δ_i² − A_i Δ_i, the squared error (A_i − τ Δ_i)²/(2τ) without its constant. Gradient
    flows through ``log_prob``: (τ Δ_i − A_i) ∇log π_θ(y_i).

    Policy mirror descent, Kimi Team, Kimi k1.5, arXiv 2501.12599 §2.3.2, with A_i = R_i − R̄, where R̄ stands
    for τ log Z. Differs from GVPO, where Δ_i is measured from its mean over the prompt: R̄ is τ log Z only as
    far as rewards are small beside τ.

    Args:
        advantages: A_i at every token, in reward units.
        tau: τ > 0, in reward units per nat.
    """
    check_floating(log_prob=log_prob, advantages=advantages)
    whole = sequence_log_ratio(log_prob, old_log_prob, response_mask).unsqueeze(-1)
    mask = response_mask.bool()
    moved = torch.where(mask, log_prob.to(whole.dtype) - old_log_prob.to(whole.dtype), 0)
    return torch.where(mask, 0.5 * tau * whole - advantages, 0) * moved


def klpo_loss(
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    *,
    beta: float,
    level: str,
) -> Tensor:
    """ℓ = −h ω log π, to be minimised: (B, T) → (B, T), 0 under the mask; h and ω are constants.

    With p = π and q = π_old of a token, ω = (1 − q)/(1 − p) is the weight of the binary KL, of the token
    against all others. ``level`` token: h_t = R − β log p/q. sequence: h = R − β Σ_t (log p/q + k), with
    k = q log q/p + (1 − q) log (1 − q)/(1 − p), one residual for the response. 1 − p and 1 − q are at least
    1e-6, log p/q is within ±20.

    KLPO, arXiv 2610.08963, with the binary KL.

    Args:
        advantages: the reward R itself, at every token, without a baseline.
        beta: β > 0, in reward units per nat.
    """
    check_floating(log_prob=log_prob, advantages=advantages)
    both, one = (log_prob.detach(), old_log_prob), torch.zeros_like(log_prob)
    log_p, log_q = (token_log_ratio(each, one, response_mask) for each in both)
    not_p, not_q = ((-each.expm1()).clamp(min=1e-6) for each in (log_p, log_q))
    moved, weight = token_log_ratio(*both, response_mask), not_q / not_p
    if level == "sequence":
        kl = not_q * weight.log() - log_q.exp() * moved
        moved = (moved + kl).sum(dim=-1, keepdim=True)
    return reinforced(weight, log_prob, advantages - beta * moved, response_mask)
