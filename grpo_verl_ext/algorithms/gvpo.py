"""GVPO: implicit rewards regressed on rewards, both measured from the mean of their prompt.

Zhang et al., arXiv 2504.19599. Response i of a prompt with k responses has reward R_i, and two log-ratios,
*sums* over its tokens with no normalisation by length:

    Δ_i = log π_θ(y_i) − log π_old(y_i),      ℓ_i = log π_old(y_i) − log π'(y_i),

where π_old is the policy of the batch's log-probs and π' is the anchor (often π_old itself: ℓ = 0). A bar is
the mean over the prompt's k responses. The loss of a prompt is

    1/(k−1) Σ_i ½ d_i²,      d_i = β (Δ_i − Δ̄) − Ã_i,      Ã_i = (R_i − R̄) − β (ℓ_i − ℓ̄),

whose unique minimiser is π* ∝ π' e^{R/β} (Theorem 1), for every sampling distribution that covers π'
(Theorem 2). With 1/(k−1) the estimate is unbiased, and k may differ per prompt. The loss of a group of one is
0: there is nothing to compare it with.

**Rejected responses leave their prompt.** R̄, Δ̄ and k must be over the same responses, or Σ_i d_i ≠ 0, and
a response to which rollout rejection left no token has no log π(y) any more. So it counts in none of the
three: the others are a smaller sample, drawn from what is kept, and 1/(k−1) is unbiased for any k ≥ 2.
Theorem 2 allows that distribution as far as it covers π'; it says nothing about responses that are always
rejected.

**Exact at any split.** Δ̄ is all that couples the responses of a prompt. Because Σ_i d_i = 0, the gradient
through Δ̄ cancels, so Δ̄ may be a constant, computed from the sums of the whole group (`drift_sums`) over
micro-batches or ranks. Each response then has a loss of its own, `squared_error`, and value and gradient of
their sum are those of the formula above, in whichever micro-batch or rank the responses are;
`catalogue.compute.group_loss` sums them.

**Weights of responses.** Everything holds for f_i Δ_i and f_i ℓ_i in the place of Δ_i and ℓ_i with constants
f_i > 0; `distillation` uses f_i = |y_i|^(−α), `length_weight`. GVPO has f = 1.

Shapes: (B,) one number per response, in any order; log-ratios in nats, rewards and d in reward units.
Gradient flows through ``log_ratio`` alone.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_verl_ext.algorithms.advantages import has_tokens
from grpo_verl_ext.algorithms.aggregation import sequence_sums
from grpo_verl_ext.algorithms.groups import group_deviation
from grpo_verl_ext.algorithms.mini_batch import MiniBatchRows
from grpo_verl_ext.algorithms.validation import TensorError, check_floating


@dataclass(frozen=True)
class GroupRows:
    """The group of each response of a micro-batch, (B,) each.

    Attributes:
        index: number of its prompt in the rollout batch.
        size: k, the prompt's responses with tokens: neither padding nor rejected.
        drift: Δ̄, mean of Δ = log π_θ(y) − log π_old(y) over them, at the policy before this update, in nats;
            0 for a row that is no response.
        old_deviation: log π_old(y) minus its mean over them, in nats.
        anchor_deviation: log π′(y) minus its mean over them, in nats.
        old_is_current: whether the policy has not moved since ``old_log_probs`` were computed; these then
            differ from the current log-probs by rounding alone.
    """

    index: Tensor
    size: Tensor
    drift: Tensor
    old_deviation: Tensor
    anchor_deviation: Tensor
    old_is_current: bool = False


def sequence_log_ratio(log_prob: Tensor, old_log_prob: Tensor, response_mask: Tensor) -> Tensor:
    """Δ_i = Σ_t (log_prob − old_log_prob) over the tokens of response i: (B, T) → (B,), fp32 or better.

    Nothing is clipped: GVPO has no ratio to explode. What stands under the mask, NaN included, does not
    count.
    """
    check_floating(log_prob=log_prob, old_log_prob=old_log_prob)
    wide = torch.promote_types(log_prob.dtype, torch.float32)
    return sequence_sums(log_prob.to(wide) - old_log_prob.to(wide), response_mask)


def length_weight(lengths: Tensor, alpha: float) -> Tensor:
    """f_i = |y_i|^(−α), 1 for a response without tokens: (B,) → (B,) fp64.

    Args:
        lengths: |y_i|, tokens that the policy wrote.
        alpha: α ≥ 0; 0 weighs all responses alike.
    """
    return lengths.clamp(min=1).double().pow(-alpha)


def anchored(
    advantages: Tensor, anchor_log_ratio: Tensor, group: Tensor, member: Tensor, beta: float
) -> Tensor:
    """Ã_i = A_i − β (ℓ_i − ℓ̄): targets for an anchor π' that is not π_old: (B,) → (B,).

    Args:
        advantages: A_i = R_i − R̄, from `advantages.centred`; these are the targets where π' = π_old.
        anchor_log_ratio: ℓ_i = log π_old(y_i) − log π'(y_i), from `sequence_log_ratio`.
        group: from `groups.dense_group_ids`.
        member: False for padding rows and for responses without tokens.
        beta: β, in reward units per nat.
    """
    return advantages - beta * group_deviation(anchor_log_ratio, group, member)


def residual(log_ratio: Tensor, targets: Tensor, drift: Tensor | float, beta: float) -> Tensor:
    """d_i = β (Δ_i − Δ̄) − Ã_i: (B,) → (B,).

    Args:
        log_ratio: Δ_i, from `sequence_log_ratio`.
        targets: Ã_i.
        drift: Δ̄ of the prompt of each response, a constant; 0 at the first update after a rollout.
        beta: β.
    """
    return beta * (log_ratio - drift) - targets


def per_degree_of_freedom(values: Tensor, group_size: Tensor | int) -> Tensor:
    """values_i / (k − 1) with k the size of the prompt's group, 0 for k ≤ 1: (B,) → (B,)."""
    k = torch.as_tensor(group_size, device=values.device)
    return torch.where(k > 1, values / (k - 1).clamp(min=1), 0)


def squared_error(residual: Tensor, group_size: Tensor | int) -> Tensor:
    """½ d_i² / (k − 1): (B,) → (B,). Summed over a prompt and averaged over prompts it is GVPO's loss.

    The mean-squared-error form. Its gradient is −β Σ_i w_i ∇log π_θ(y_i) / (k − 1) with the weights
    w_i = Ã_i − β (Δ_i − Δ̄) = −d_i of the log-likelihoods. Σ_i w_i = 0 within each prompt, which is what
    cancels the partition function.
    """
    return per_degree_of_freedom(0.5 * residual.square(), group_size)


def squared_error_parts(
    log_ratio: Tensor, targets: Tensor, drift: Tensor | float, group_size: Tensor | int, beta: float
) -> tuple[Tensor, ...]:
    """Split `squared_error` into terms of the rewards, of the policy's spread and of their agreement: (B,).

    Summed over a prompt these are ½ Var(Ã), ½ β² Var(Δ) and −β Cov(Ã, Δ), all with k − 1.
    """
    implicit = beta * (log_ratio - drift)
    parts = (0.5 * targets.square(), 0.5 * implicit.square(), -targets * implicit)
    return tuple(per_degree_of_freedom(part, group_size) for part in parts)


def drift_sums(log_ratio: Tensor, group: Tensor, member: Tensor, num_groups: int) -> Tensor:
    """Σ_i Δ_i of every prompt and the number of its responses: (B,) each → (2, P).

    Sums over several micro-batches or ranks add up.

    Args:
        log_ratio: Δ_i, 0 for rows without tokens, as `sequence_log_ratio` gives it.
        group: number of each row's prompt, 0 … P−1.
        member: False for padding rows and for responses without tokens.
        num_groups: P.
    """
    values = torch.stack((log_ratio, member.to(log_ratio.dtype)))
    return values.new_zeros(2, num_groups).index_add_(1, group, values)


def mean_drift(sums: Tensor, group: Tensor, member: Tensor, group_size: Tensor) -> Tensor:
    """Δ̄ of the prompt of each response, 0 for the other rows: (2, P), (B,) each → (B,).

    Args:
        sums: `drift_sums` over all responses of these prompts.
        group: number of each row's prompt.
        member: False for padding rows and for responses without tokens.
        group_size: k of each row's prompt.

    Raises:
        TensorError: the sums lack responses of a prompt, so that Δ̄ would be the mean of a part of it.
    """
    log_ratio_sums, counts = sums[:, group]
    torn = member & (counts != group_size)
    if torn.any():
        row = int(torn.nonzero()[0])
        raise TensorError(
            f"sums have {int(counts[row])} responses of prompt {int(group[row])}; valid are all "
            f"{int(group_size[row])}. Pass sums over all micro-batches or ranks that hold the prompt"
        )
    return torch.where(member, log_ratio_sums / counts.clamp(min=1), 0)


def drift(rows: MiniBatchRows, alpha: float = 0) -> Tensor:
    """Return the mean of f_i Δ_i over the prompt of each response, 0 without tokens: rows → (R, 1), nats."""
    log_ratio = sequence_log_ratio(rows.log_prob, rows.old_log_prob, rows.response_mask)
    log_ratio = length_weight(rows.response_mask.sum(-1), alpha) * log_ratio
    member = has_tokens(rows.response_mask)
    sums = drift_sums(log_ratio, rows.prompt, member, int(rows.prompt.max()) + 1)
    return mean_drift(sums, rows.prompt, member, rows.prompt_size).unsqueeze(-1)
