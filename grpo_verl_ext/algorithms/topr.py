"""TOPR: a better response counts fully, a worse one by its importance weight up to 1.

Le Roux et al., Tapered Off-Policy REINFORCE, arXiv 2503.14286.
"""

import torch
from torch import Tensor

from grpo_verl_ext.algorithms.gvpo import sequence_log_ratio
from grpo_verl_ext.algorithms.validation import check_floating, check_same_shape


def topr_loss(log_prob: Tensor, old_log_prob: Tensor, advantages: Tensor, response_mask: Tensor) -> Tensor:
    """ℓ_{i,t} = −w_i A_i log π_θ(y_{i,t}), to be minimised: (B, T) → (B, T), 0 under the mask.

    w_i, a constant, is 1 where A_i ≥ 0, else min(W_i, 1) with W_i = Π_t π_θ(y_{i,t}) / π_old(y_{i,t}) over
    the tokens of response i, not normalised by its length: a bad response that the policy has given up is
    pushed no further, and a good one is learned however improbable it has become. Gradient flows through
    ``log_prob`` alone; summed over tokens it is −w_i A_i ∇log π_θ(y_i).

    arXiv 2503.14286, the gradient of J_TOPR, with A in the place of the reward minus a baseline.
    """
    check_floating(advantages=advantages)
    check_same_shape(log_prob=log_prob, advantages=advantages)
    mask = response_mask.bool()
    log_weight = sequence_log_ratio(log_prob.detach(), old_log_prob, response_mask).unsqueeze(-1)
    weight = torch.where(advantages >= 0, 1.0, log_weight.clamp(max=0).exp())
    wide = log_prob.to(torch.promote_types(log_prob.dtype, torch.float32))
    return torch.where(mask, -weight * advantages, 0) * torch.where(mask, wide, 0)
