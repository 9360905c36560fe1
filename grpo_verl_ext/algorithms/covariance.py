"""Tokens by their covariance of log-prob and advantage, which drives the policy's entropy down.

Cui et al., The Entropy Mechanism of RL for Reasoning Language Models, arXiv 2505.22617. Over the N tokens of
a mini-batch

    c_i = (log π_θ(y_i) − 1/N Σ_j log π_θ(y_j)) (A_i − 1/N Σ_j A_j).

Clip-Cov gives no gradient to some tokens with large c, KL-Cov adds a penalty to those with the largest. Both
choose among all tokens of the mini-batch, so the choice is a statistic, a constant of the loss.

Shapes: (R, T) each, of `mini_batch.MiniBatchRows`; chosen tokens are True.
"""

import torch
from torch import Tensor

from grpo_verl_ext.algorithms.mini_batch import MiniBatchRows
from grpo_verl_ext.algorithms.surrogate import clipped_surrogate, token_events, token_log_ratio
from grpo_verl_ext.algorithms.validation import check_floating, check_same_shape


def covariances(rows: MiniBatchRows) -> Tensor:
    """Return c of each token, in nats times units of the advantages; 0 under the mask: (R, T)."""
    mask, values = rows.response_mask, (rows.log_prob, rows.advantages)
    log_prob, advantages = (torch.where(mask, each - each[mask].mean(), 0) for each in values)
    return log_prob * advantages


def largest_covariances(rows: MiniBatchRows, *, share: float) -> Tensor:
    """Choose the max(1, ⌊share · N⌋) tokens with the largest c, KL-Cov's: (R, T) bool.

    Of equal ones the first are taken.
    """
    mask = rows.response_mask
    found = covariances(rows)[mask]
    return _first(mask, found.argsort(descending=True, stable=True), share)


def drawn_covariances(rows: MiniBatchRows, *, share: float, low: float, high: float, **clip: float) -> Tensor:
    """Draw max(1, ⌊share · N⌋) tokens with low < c < high, or all of them, Clip-Cov's: (R, T) bool.

    Uniformly and without replacement, by `MiniBatchRows.seed`; not among tokens whose gradient PPO's clip has
    removed already, as in the authors' code; ``clip`` is its range, as `surrogate.token_events` takes it.
    """
    mask = rows.response_mask
    log_ratio = token_log_ratio(rows.log_prob, rows.old_log_prob, mask)
    events = token_events(log_ratio, rows.advantages, mask, **clip)
    found = covariances(rows)
    keeps_gradient = ~(events.clipped_low | events.clipped_high)
    eligible = ((found > low) & (found < high) & keeps_gradient)[mask].nonzero().squeeze(-1)
    generator = torch.Generator().manual_seed(rows.seed)
    order = torch.randperm(len(eligible), generator=generator)
    return _first(mask, eligible[order.to(eligible.device)], share)


def _first(mask: Tensor, tokens: Tensor, share: float) -> Tensor:
    """Return True at the first max(1, ⌊share · N⌋) of these tokens, counted over the mask: (R, T) bool."""
    flags = mask.new_zeros(int(mask.sum()))
    flags[tokens[: max(1, int(share * len(flags)))]] = True
    return torch.zeros_like(mask).masked_scatter(mask, flags)


def clip_cov_surrogate(
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    statistic: Tensor,
    **clip: float,
) -> Tensor:
    """ℓ_{i,t} = `surrogate.clipped_surrogate` with its range ``clip``, 0 where ``statistic`` is: (B, T)."""
    check_same_shape(log_prob=log_prob, drawn=statistic)
    loss = clipped_surrogate(log_prob, old_log_prob, advantages, response_mask, **clip)
    return torch.where(statistic.bool(), 0, loss)


def kl_cov_surrogate(
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    statistic: Tensor,
    *,
    coefficient: float,
) -> Tensor:
    """ℓ_{i,t} = −ρ A, plus coefficient · |log ρ| for the tokens with the largest c: (B, T) → (B, T).

    ``statistic`` is True for these. Nothing is clipped. |log ρ| stands for the KL to π_old, as in the
    authors' code; at ρ = 1 it has no gradient: the first update is the plain policy gradient.
    """
    check_floating(log_prob=log_prob, advantages=advantages)
    check_same_shape(log_prob=log_prob, largest=statistic)
    log_ratio = token_log_ratio(log_prob, old_log_prob, response_mask)
    loss = log_ratio.exp() * torch.where(response_mask.bool(), -advantages, 0)
    return loss + torch.where(statistic.bool(), coefficient * log_ratio.abs(), 0)
