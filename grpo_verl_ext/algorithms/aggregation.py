"""Reduce per-token losses (B, T) once, with the denominators of the *whole* mini-batch as arguments.

A call sees one micro-batch of one data-parallel rank. verl sums micro-batches and averages gradients over
the D ranks, so with numbers counted over all ranks and micro-batches (N tokens, B responses, P prompts) the
parts add up to the mean over the mini-batch, however it is split:

    1/D · Σ_ranks Σ_micro-batches  D/N · Σ_i Σ_t m ℓ   =   1/N · Σ_i Σ_t m ℓ     over the mini-batch.

Gradient flows through ``loss``; whatever stands under the mask does not count. A mini-batch without a single
token (verl's padding can make one) has loss 0. A loss and a mask of different shapes raise `TensorError`.
"""

import torch
from torch import Tensor

from grpo_verl_ext.algorithms.validation import check_matrix, check_same_shape


def sequence_sums(loss: Tensor, response_mask: Tensor) -> Tensor:
    """Σ_t m_{i,t} ℓ_{i,t}: (B, T) → (B,); booleans are counted."""
    check_same_shape(loss=loss, response_mask=response_mask)
    # A zero of the same dtype: next to the number 0, booleans would become eight bytes each.
    return torch.where(response_mask.bool(), loss, loss.new_zeros(())).sum(dim=-1)


def token_mean(loss: Tensor, response_mask: Tensor, batch_num_tokens: int, dp_size: int = 1) -> Tensor:
    """D/N · Σ_i Σ_t m ℓ: (B, T) → (). Every token of the mini-batch weighs the same.

    DAPO, arXiv 2503.14476 eq. 8, with the mini-batch in the place of one prompt's group, as in verl and TRL.
    """
    return sequence_sums(loss, response_mask).sum() * dp_size / max(batch_num_tokens, 1)


def sequence_mean_token_mean(
    loss: Tensor, response_mask: Tensor, global_batch_size: int, dp_size: int = 1
) -> Tensor:
    """D/B · Σ_i 1/|o_i| Σ_t m ℓ: (B, T) → (). Every response weighs the same; an empty one counts as 0.

    GRPO, arXiv 2402.03300 eq. 3.
    """
    length = response_mask.sum(dim=-1).clamp(min=1)
    return (sequence_sums(loss, response_mask) / length).sum() * dp_size / global_batch_size


def sequence_mean_constant_length(
    loss: Tensor, response_mask: Tensor, global_batch_size: int, loss_scale_factor: float, dp_size: int = 1
) -> Tensor:
    """D/(B·L) · Σ_i Σ_t m ℓ with a constant L, the generation budget in tokens: (B, T) → ().

    Dr. GRPO, arXiv 2503.20783 §3.2. Differs from verl's ``seq-mean-token-sum-norm``, whose L is by default
    the width of the micro-batch at hand, so that the result changes with the split.
    """
    return sequence_sums(loss, response_mask).sum() * dp_size / (global_batch_size * float(loss_scale_factor))


def prompt_mean(
    loss: Tensor, response_mask: Tensor, global_batch_size: int, group_size: int, dp_size: int = 1
) -> Tensor:
    """D/P · Σ_i Σ_t m ℓ with P = B/G prompts: (B, T) → (), for losses that already carry 1/N_x.

    With the advantages of `advantages.per_prompt_token` (N_x, the tokens of the prompt's group) this is DAPO
    as printed, arXiv 2503.14476 eq. 8: 1/P Σ_x 1/N_x Σ_{i in x} Σ_t ℓ. Every prompt weighs the same.
    """
    return response_prompt_mean(sequence_sums(loss, response_mask), global_batch_size, group_size, dp_size)


def response_prompt_mean(loss: Tensor, global_batch_size: int, group_size: int, dp_size: int = 1) -> Tensor:
    """D/P · Σ_i ℓ_i with P = B/G prompts: (B,) → (), for losses that carry the weight within their prompt.

    With `gvpo.squared_error`, arXiv 2504.19599: 1/P Σ_x 1/(k−1) Σ_{i in x} ½ d_i².
    """
    return loss.sum() * (dp_size * group_size) / global_batch_size


def local_token_mean(loss: Tensor, response_mask: Tensor, global_batch_size: int, dp_size: int = 1) -> Tensor:
    """D·b/B · Σ_i Σ_t m ℓ / Σ_i Σ_t m, all sums over the b rows at hand: (B, T) → ().

    The token mean of each micro-batch, averaged over micro-batches by their share b/B of the responses:
    TRL's ``loss_type="bnpo"``. By definition it depends on how the mini-batch is split.
    """
    check_matrix(response_mask=response_mask)
    share = response_mask.shape[0] / global_batch_size
    return micro_batch_token_mean(loss, response_mask) * (dp_size * share)


def micro_batch_token_mean(values: Tensor, response_mask: Tensor) -> Tensor:
    """Σ_i Σ_t m v / Σ_i Σ_t m over the rows at hand: (B, T) → (); 0 without a token."""
    return sequence_sums(values, response_mask).sum() / response_mask.sum().clamp(min=1)


def evenly_weighted_token_mean(
    values: Tensor, response_mask: Tensor, batch_num_tokens: int, global_batch_size: int
) -> Tensor:
    """B/b · 1/N · Σ_i Σ_t m v over the b rows at hand: (B, T) → ().

    For metrics that are later averaged with equal weights over micro-batches and ranks: where all have b
    rows, that average is exactly the token mean of the mini-batch. 0 without a row.
    """
    check_matrix(response_mask=response_mask)
    rows = max(response_mask.shape[0], 1)
    return token_mean(values, response_mask, batch_num_tokens) * (global_batch_size / rows)


def evenly_weighted_response_mean(
    values: Tensor, response_mask: Tensor, batch_num_tokens: int, global_batch_size: int
) -> Tensor:
    """N/n · 1/B · Σ_i v_i over the rows at hand, which have n tokens: (B,), (B, T) → ().

    For metrics that are later averaged with equal weights over micro-batches and ranks: where all have n
    tokens, that average is exactly the mean over the B responses of the mini-batch. With plain means, a
    micro-batch of few long responses would weigh as much as one of many short ones.
    """
    return values.sum() / global_batch_size * (batch_num_tokens / response_mask.sum().clamp(min=1))
