"""Outcome advantages: one number per response, computed within its group and spread over its tokens.

None of these needs a gradient: rewards carry none, and an advantage is a constant of the policy loss.

A reward that is not finite, or whose square overflows its dtype (1e19 in fp32), makes its own group NaN; with
`batch_scaled`, the whole batch. Nothing here checks for it, because that would wait for a GPU; the registered
estimators refuse it. Shapes or dtypes that do not fit raise `TensorError`.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from grpo_verl_ext.algorithms import validation
from grpo_verl_ext.algorithms.groups import group_deviation, group_std, group_sum

_STD_EPS = 1e-6
"""Added to a standard deviation before dividing, in reward units; verl's value (TRL: 1e-4)."""

Baseline = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(rewards, group, member), each (B,) → advantages (B,)."""


def response_rewards(token_level_rewards: Tensor) -> Tensor:
    """r_i = Σ_t r_{i,t}: (B, T) → (B,), in reward units; summed in fp32 or better.

    Deliberately not masked by ``response_mask``: when a multi-turn response ends in a token that the policy
    did not write, verl puts the reward on exactly that masked token.
    """
    validation.check_floating(token_level_rewards=token_level_rewards)
    return token_level_rewards.sum(
        dim=-1, dtype=torch.promote_types(token_level_rewards.dtype, torch.float32)
    )


def has_tokens(response_mask: Tensor) -> Tensor:
    """Whether each row has a token that the policy wrote: (B, T) → (B,) bool.

    A row without one may still be a response: a rejected response has no token left.
    """
    validation.check_matrix(response_mask=response_mask)
    return response_mask.amax(dim=-1).bool()  # a third of the time of any() on a CPU


def centred(rewards: Tensor, group: Tensor, member: Tensor) -> Tensor:
    """A_i = r_i − mean r, the mean over the group of i: (B,) → (B,), in reward units.

    Dr. GRPO, arXiv 2503.20783 §3.1. A group of one has advantage 0.
    Differs from verl, which leaves a group of one its raw reward.
    """
    return group_deviation(rewards, group, member)


def leave_one_out(rewards: Tensor, group: Tensor, member: Tensor) -> Tensor:
    """A_i = r_i − mean of the other r_j of its group = n/(n − 1) (r_i − mean r): (B,) → (B,), reward units.

    RLOO, arXiv 2402.14740. A group of one has advantage 0.
    Differs from verl's ``rloo``, which leaves a group of one its raw reward.
    """
    deviation = group_deviation(rewards, group, member)
    size = group_sum(member.to(deviation.dtype), group)
    return deviation * (size / (size - 1).clamp(min=1))


def group_scaled(rewards: Tensor, group: Tensor, member: Tensor) -> Tensor:
    """A_i = (r_i − mean r) / (std r + ε), mean and std (n − 1) over the group of i, ε = 1e-6: (B,) → (B,).

    GRPO, arXiv 2402.03300 §4.1.2. Equal rewards, and a group of one, have advantage exactly 0.
    Differs from verl, which leaves a group of one its raw reward.
    """
    deviation = group_deviation(rewards, group, member)
    return deviation / (group_std(deviation, group, member) + _STD_EPS)


def mean_scaled(rewards: Tensor, group: Tensor, member: Tensor) -> Tensor:
    """A_i = (r_i − mean r) / (mean r + ε), the mean over the group of i, ε = 1e-6: (B,) → (B,), no unit.

    MaxRL, arXiv 2602.02710. For rewards of 0 and 1 with K right responses of n it is n/K − 1 for a right one
    and −1 for a wrong one. With n independent responses the policy gradient is without bias that of the
    log-likelihood of a right answer as far as its first n − 1 terms, Σ_{k<n} ∇pass@k / k. A group without a
    right response, and a group of one, has advantage 0.
    Differs from the authors' code, in which a group of one has r / ε.

    Raises:
        TensorError: a negative reward; the mean could be 0 or negative, and turn the advantages round.
    """
    if bool((member & (rewards < 0)).any()):
        row = int((member & (rewards < 0)).nonzero()[0])
        raise validation.TensorError(
            f"the reward of row {row} is {rewards[row].item()}; MaxRL divides by the group's mean reward, "
            f"and valid are rewards ≥ 0, such as 0 and 1. Correct the reward function "
            f"(reward.custom_reward_function.path)"
        )
    deviation = group_deviation(rewards, group, member)
    size = group_sum(member.to(deviation.dtype), group)
    mean = group_sum(torch.where(member, rewards, 0), group) / size.clamp(min=1)
    return deviation / (mean + _STD_EPS)


def batch_scaled(rewards: Tensor, group: Tensor, member: Tensor) -> Tensor:
    """A_i = (r_i − mean r) / (std R + ε), mean over the group of i, std (n − 1) over the whole batch R.

    (B,) → (B,). arXiv 2508.08221, there "local mean, global std"; TRL's ``scale_rewards="batch"``.
    """
    everyone = torch.zeros_like(group)
    batch_std = group_std(group_deviation(rewards, everyone, member), everyone, member)
    return group_deviation(rewards, group, member) / (batch_std + _STD_EPS)


def decoupled(rewards: Tensor, weights: Tensor, group: Tensor, member: Tensor) -> Tensor:
    """A_i = s_i / (std s + ε), s_i = Σ_m w_m (r_{i,m} − mean r_m) / (std r_m + ε), ε = 1e-6: (B, M) → (B,).

    Mean and std (n − 1) of r_m are over the group of i, those of s, whose mean is 0, over all responses of
    the batch. GDPO, arXiv 2601.05242: no reward outweighs another by its spread. Equal rewards in a group add
    0 for this group, and a group of one has advantage 0. Where the weighted rewards cancel in every group of
    the batch, what is left of rounding and of the first ε becomes advantages of the size of 1.
    Differs from verl's ``gdpo``, whose second mean and std are over tokens: long responses weigh more there.

    Args:
        rewards: r_{i,m}, M rewards of each response.
        weights: w_m, (M,).
    """
    validation.check_floating(rewards=rewards)
    validation.check_matrix(rewards=rewards)
    if weights.shape != rewards.shape[1:]:
        raise validation.TensorError(
            f"rewards has shape {tuple(rewards.shape)} and weights {tuple(weights.shape)}; valid are (B, M) "
            f"and (M,), a weight for each reward"
        )
    scaled = torch.stack([group_scaled(each, group, member) for each in rewards.unbind(dim=-1)], dim=-1)
    return group_scaled(scaled @ weights.to(scaled.dtype), torch.zeros_like(group), member)


def outcome_advantages(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    group: Tensor,
    baseline: Baseline = group_scaled,
    *,
    member: Tensor | None = None,
) -> Tensor:
    """A_{i,t} = A_i on the tokens of response i, 0 elsewhere: (B, T) → (B, T), in the dtype of the rewards.

    Args:
        token_level_rewards: (B, T), reward units; statistics accumulate in fp32 or better.
        response_mask: (B, T), nonzero on the tokens that the policy wrote and that are learnt from. The
            reward of a row without any, such as a rejected response, still counts.
        group: (B,) int64 from `dense_group_ids`.
        baseline: `group_scaled` (GRPO, DAPO), `centred` (Dr. GRPO), `leave_one_out` (RLOO) or `batch_scaled`.
        member: (B,) bool, False for padding rows, which take no part in the statistics; None: there are none.
    """
    validation.check_rows(response_mask, group)
    validation.check_same_shape(response_mask=response_mask, token_level_rewards=token_level_rewards)
    if member is None:
        member = torch.ones_like(group, dtype=torch.bool)
    advantages = baseline(response_rewards(token_level_rewards), group, member)
    return on_tokens(advantages.to(token_level_rewards.dtype), response_mask)


def on_tokens(advantages: Tensor, response_mask: Tensor) -> Tensor:
    """One number per response, repeated on its tokens and 0 elsewhere: (B,), (B, T) → (B, T)."""
    return torch.where(response_mask.bool(), advantages.unsqueeze(-1), 0)


def per_response(advantages: Tensor, response_mask: Tensor) -> Tensor:
    """Undo `on_tokens`: the value at each response's first token, 0 without one: (B, T) → (B,)."""
    validation.check_matrix(response_mask=response_mask)
    validation.check_same_shape(response_mask=response_mask, advantages=advantages)
    first = response_mask.to(torch.uint8).argmax(dim=-1, keepdim=True)
    return torch.where(has_tokens(response_mask), advantages.gather(-1, first).squeeze(-1), 0)


def is_truncated(response_mask: Tensor, max_response_length: int) -> Tensor:
    """Whether each response used up the budget of ``max_response_length`` tokens: (B, T) → (B,) bool.

    True where the token at the last position of the budget is the policy's, so a response that ends by
    itself exactly there counts too. A batch padded to less than the budget, T < L, has none.
    """
    validation.check_matrix(response_mask=response_mask)
    if max_response_length < 1:
        raise validation.TensorError(
            f"max_response_length is {max_response_length}; valid is an integer ≥ 1. "
            f"Pass max_response_length=<the budget in tokens>"
        )
    if response_mask.shape[-1] < max_response_length:
        return torch.zeros_like(response_mask[:, 0], dtype=torch.bool)
    return response_mask[:, max_response_length - 1 :].bool().any(dim=-1)


def learnt_from(response_mask: Tensor, max_response_length: int | None = None) -> Tensor:
    """Return the tokens that get their response's advantage: (B, T) → (B, T) bool.

    All of ``response_mask``, less the responses that `is_truncated` names where there is a budget. These keep
    their place in the statistics of their group and in every denominator of the loss.
    Overlong filtering of DAPO, arXiv 2503.14476 §3.4. Differs from TRL's ``mask_truncated_completions``: a
    KL or entropy term still sees the response, and a mean over tokens is divided by its tokens, too.
    """
    learnt = response_mask.bool()
    if max_response_length is None:
        return learnt
    return learnt & ~is_truncated(learnt, max_response_length).unsqueeze(-1)


def per_prompt_token(advantages: Tensor, response_mask: Tensor, group: Tensor) -> Tensor:
    """A_{i,t} / N_x with N_x = Σ_{i in x} |o_i| the tokens of the prompt's whole group: (B, T) → (B, T).

    Because min(ρA, clip(ρ)A) is homogeneous in A, the surrogate of A/N_x is 1/N_x of the surrogate of A:
    the weight that DAPO's formula gives each token of a prompt (arXiv 2503.14476 eq. 8) thus travels with
    the rows into any micro-batch, where groups are no longer whole. Units: reward units per token.
    One advantage per response, (B, 1), gives (B, 1).
    """
    validation.check_rows(response_mask, group)
    validation.check_matrix(advantages=advantages)
    validation.check_same_shape(response_mask=response_mask[:, :1], advantages=advantages[:, :1])
    tokens = response_mask.sum(dim=-1).to(torch.promote_types(advantages.dtype, torch.float32))
    weight = group_sum(tokens, group).clamp(min=1).reciprocal()
    return advantages * weight.to(advantages.dtype).unsqueeze(-1)
