"""VESPO: a smooth kernel of the whole response's importance weight in the place of a clip.

Shen et al., Variational Sequence-Level Soft Policy Optimization, arXiv 2602.10693.
"""

import math

import torch
from torch import Tensor

from grpo_verl_ext.algorithms.surrogate import reinforced, token_log_ratio
from grpo_verl_ext.algorithms.validation import check_floating

_LOG_WEIGHT_LIMITS = (math.log(1e-8), 20.0)
"""Within these log W stays, as in the authors' code and TRL; φ is 0 in fp32 long before either."""


@torch.no_grad()
def gamma_kernel(log_weight: Tensor, k: Tensor | float, decay: Tensor | float) -> Tensor:
    """φ(W) = W^k e^{λ (1 − W)}, a constant, from log W: φ(1) = 1, its maximum is at W = k/λ, §3.4.

    Args:
        log_weight: log W, any shape.
        k: power k ≥ 0, the paper's c₁: small weights are damped.
        decay: rate λ > 0, the paper's c₂: large weights are damped.
    """
    log_weight = log_weight.clamp(*_LOG_WEIGHT_LIMITS)
    return (k * log_weight + decay * (1 - log_weight.exp())).exp()


def vespo_loss(
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    *,
    k_pos: float,
    lambda_pos: float,
    k_neg: float,
    lambda_neg: float,
) -> Tensor:
    """ℓ_{i,t} = −φ(W_i) A_{i,t} log π_θ(y_{i,t}), to be minimised: (B, T) → (B, T), 0 under the mask.

    W_i = Π_t π_θ(y_{i,t}) / π_old(y_{i,t}) over the tokens of response i, not normalised by its length, is a
    constant; `gamma_kernel` has k_pos and lambda_pos where A ≥ 0, k_neg and lambda_neg elsewhere. Gradient
    flows through ``log_prob`` alone: −φ(W_i) A_i ∇log π_θ(y_i), a mean over responses of whatever length
    with `aggregation.token_mean`.

    arXiv 2602.10693 §3.4. Differs from the paper: log ρ of a token is limited to ±20, and log W to
    [log 1e-8, 20]. The same as TRL's ``loss_type="vespo"`` without rollout weights.
    """
    check_floating(log_prob=log_prob, advantages=advantages)
    log_weight = token_log_ratio(log_prob.detach(), old_log_prob, response_mask).sum(dim=-1, keepdim=True)
    better, worse = gamma_kernel(log_weight, k_pos, lambda_pos), gamma_kernel(log_weight, k_neg, lambda_neg)
    return reinforced(torch.where(advantages >= 0, better, worse), log_prob, advantages, response_mask)
