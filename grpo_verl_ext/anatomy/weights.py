"""Compute the weight that each algorithm gives a token at the first update, by autograd of our own losses.

There π_θ = π_old: every ratio is 1, no clip acts, and all that distinguishes the algorithms is a weight

    w_{i,t} = −∂L/∂log π_θ(o_{i,t}),

the same for all tokens of a response. The batch of a step is treated as one mini-batch. Losses are evaluated
in micro-batches, which bounds the memory and changes only bnpo, by definition the mean over the local batch.
Factors that all tokens of a step share (β, Dr. GRPO's L, the number of prompts) cancel in `relative`, so they
are 1 here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_verl_ext.algorithms import advantages as adv
from grpo_verl_ext.algorithms import aggregation, gvpo
from grpo_verl_ext.algorithms.groups import dense_group_ids, group_sum
from grpo_verl_ext.algorithms.surrogate import clipped_surrogate

MICRO_BATCH_SIZE = 8
"""Responses in a local batch of bnpo: TRL's default ``per_device_train_batch_size``."""


@dataclass(frozen=True)
class Step:
    """The responses of one training step; (B,) each.

    Attributes:
        lengths: tokens, ≥ 1.
        group: from `dense_group_ids`.
    """

    rewards: Tensor
    lengths: Tensor
    group: Tensor

    @classmethod
    def of(cls, scores: Sequence[float], lengths: Sequence[int], groups: Sequence[str]) -> Step:
        """Make a step from the score, length and prompt id of each response."""
        return cls(torch.tensor(scores), torch.tensor(lengths), dense_group_ids(groups))

    @property
    def size(self) -> int:
        """B."""
        return len(self.rewards)

    @property
    def tokens(self) -> int:
        """N = Σ |o_i|."""
        return int(self.lengths.sum())

    @property
    def group_size(self) -> Tensor:
        """k, the size of each response's group: (B,)."""
        return group_sum(torch.ones_like(self.lengths), self.group)

    def mask(self, rows: Tensor | slice = slice(None)) -> Tensor:
        """Return the response mask, (b, T) bool, with T the longest of the chosen responses."""
        lengths = self.lengths[rows]
        return torch.arange(int(lengths.max())) < lengths.unsqueeze(-1)

    def baseline(self, of: adv.Baseline) -> Tensor:
        """Return the advantages by this baseline, (B,)."""
        return of(self.rewards, self.group, torch.ones(self.size, dtype=torch.bool))

    def has_no_signal(self) -> Tensor:
        """Whether each response is in a group with equal scores, that is, advantages of 0: (B,) bool."""
        return group_sum(self.baseline(adv.centred).ne(0).long(), self.group) == 0


@dataclass(frozen=True)
class MicroBatch:
    """Arguments of a loss for some responses of a step; (b, T) each, but for ``group_size`` (b,)."""

    log_prob: Tensor
    advantages: Tensor
    mask: Tensor
    group_size: Tensor


@dataclass(frozen=True)
class Variant:
    """An estimator of advantages, for the whole step (B,), and its loss."""

    advantages: Callable[[Step], Tensor]
    loss: Callable[[MicroBatch, Step], Tensor]


def _group_scaled(step: Step) -> Tensor:
    return step.baseline(adv.group_scaled)


def _per_prompt_token(step: Step) -> Tensor:
    return adv.per_prompt_token(_group_scaled(step).unsqueeze(-1), step.mask(), step.group).squeeze(-1)


def _centred(step: Step) -> Tensor:
    return step.baseline(adv.centred)


def _clipped(reduce: Callable[[Tensor, Tensor, Step], Tensor]) -> Callable[[MicroBatch, Step], Tensor]:
    def loss(part: MicroBatch, step: Step) -> Tensor:
        old_log_prob = part.log_prob.detach()
        per_token = clipped_surrogate(
            part.log_prob, old_log_prob, part.advantages, part.mask, clip_ratio_low=0.2, clip_ratio_high=0.2
        )
        return reduce(per_token, part.mask, step)

    return loss


def _gvpo(part: MicroBatch, step: Step) -> Tensor:
    log_ratio = gvpo.sequence_log_ratio(part.log_prob, part.log_prob.detach(), part.mask)
    targets = adv.per_response(part.advantages, part.mask)
    residual = gvpo.residual(log_ratio, targets, drift=0.0, beta=1.0)
    per_response = gvpo.squared_error(residual, part.group_size)
    return aggregation.response_prompt_mean(per_response, step.size, group_size=1)


VARIANTS = {
    "grpo": Variant(
        _group_scaled,
        _clipped(lambda loss, mask, step: aggregation.sequence_mean_token_mean(loss, mask, step.size)),
    ),
    "bnpo": Variant(
        _group_scaled, _clipped(lambda loss, mask, step: aggregation.local_token_mean(loss, mask, step.size))
    ),
    "dapo": Variant(
        _group_scaled, _clipped(lambda loss, mask, step: aggregation.token_mean(loss, mask, step.tokens))
    ),
    "dapo_per_prompt": Variant(
        _per_prompt_token,
        _clipped(lambda loss, mask, step: aggregation.prompt_mean(loss, mask, step.size, group_size=1)),
    ),
    "dr_grpo": Variant(
        _centred,
        _clipped(
            lambda loss, mask, step: aggregation.sequence_mean_constant_length(
                loss, mask, step.size, loss_scale_factor=1.0
            )
        ),
    ),
    "gvpo": Variant(_centred, _gvpo),
}
"""The estimator and the loss that each preset ``+algo=…`` combines."""


def token_weights(variant: Variant, step: Step, micro_batch_size: int) -> Tensor:
    """Return w_i, the weight of each token of response i: (B,), in reward units, up to a factor per step.

    All tokens of a response share one leaf, whose gradient is the sum of theirs. The values of the log-probs
    do not matter, only that their ratio to the old ones is 1.
    """
    advantages, group_size = variant.advantages(step), step.group_size
    sums = torch.zeros(step.size)
    for rows in micro_batches(step.size, micro_batch_size):
        mask = step.mask(rows)
        log_prob = torch.zeros(len(rows), 1, requires_grad=True)
        part = MicroBatch(
            log_prob.expand(mask.shape),
            advantages[rows].unsqueeze(-1).expand(mask.shape),
            mask,
            group_size[rows],
        )
        (gradient,) = torch.autograd.grad(variant.loss(part, step), log_prob)
        sums[rows] = -gradient.squeeze(-1)
    return sums / step.lengths


def micro_batches(responses: int, size: int) -> tuple[Tensor, ...]:
    """Return row numbers of micro-batches, in a random but fixed order; TRL also shuffles before it cuts."""
    order = torch.randperm(responses, generator=torch.Generator().manual_seed(0))
    return torch.split(order, size)


def relative(weights: Tensor, lengths: Tensor) -> Tensor:
    """w_i · N / Σ_j |o_j| |w_j|: (B,) → (B,); 0 if all are. The average token of the step has |weight| 1.

    The share of the step's gradient that comes from response i is then |o_i| |w_i| / N.
    """
    mass = (weights.abs() * lengths).sum()
    return weights * lengths.sum() / mass if mass > 0 else torch.zeros_like(weights)
