"""Policy mirror descent as in Kimi k1.5: a squared log-ratio of the whole response keeps the policy near.

Kimi Team, Kimi k1.5: Scaling Reinforcement Learning with LLMs, arXiv 2501.12599, §2.3.2.
"""

import torch
from torch import Tensor

from grpo_verl_ext.algorithms.gvpo import sequence_log_ratio
from grpo_verl_ext.algorithms.validation import check_floating, check_same_shape


def mirror_descent_loss(
    log_prob: Tensor, old_log_prob: Tensor, advantages: Tensor, response_mask: Tensor, *, tau: float
) -> Tensor:
    """ℓ_{i,t} = (½ τ Δ_i − A_i) δ_{i,t}, to be minimised: (B, T) → (B, T), 0 under the mask.

    δ_{i,t} = log π_θ(y_{i,t}) − log π_old(y_{i,t}) and Δ_i = Σ_t δ_{i,t}, in nats, so that a response's
    tokens sum to ½ τ Δ_i² − A_i Δ_i, the squared error (A_i − τ Δ_i)²/(2τ) without its constant. Gradient
    flows through ``log_prob``: (τ Δ_i − A_i) ∇log π_θ(y_i).

    arXiv 2501.12599 §2.3.2, with A_i = R_i − R̄, where R̄ stands for τ log Z. Differs from GVPO, where Δ_i is
    measured from its mean over the prompt: R̄ is τ log Z only as far as rewards are small beside τ.

    Args:
        advantages: A_i at every token, in reward units.
        tau: τ > 0, in reward units per nat.
    """
    check_floating(advantages=advantages)
    check_same_shape(log_prob=log_prob, advantages=advantages)
    whole = sequence_log_ratio(log_prob, old_log_prob, response_mask).unsqueeze(-1)
    mask = response_mask.bool()
    moved = torch.where(mask, log_prob.to(whole.dtype) - old_log_prob.to(whole.dtype), 0)
    return torch.where(mask, 0.5 * tau * whole - advantages, 0) * moved
