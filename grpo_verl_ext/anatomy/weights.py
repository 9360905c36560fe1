"""Compute the weight that each algorithm gives a token at the first update, by autograd of its loss.

There π_θ = π_old: every ratio is 1, no clip acts, and all that distinguishes the algorithms is a weight

    w_{i,t} = −∂L/∂log π_θ(o_{i,t}),

the same for all tokens of a response. The batch of a step is treated as one mini-batch. Losses are evaluated
in micro-batches, which bounds the memory and changes only bnpo, by definition the mean over the local batch.
Factors that all tokens of a step share (β, Dr. GRPO's L, the number of prompts) cancel in `relative`, so they
are 1 here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from grpo_verl_ext import catalogue
from grpo_verl_ext.algorithms import advantages as adv
from grpo_verl_ext.algorithms.groups import dense_group_ids, group_sum
from grpo_verl_ext.catalogue import PRESETS, Algorithm, Estimator, Preset
from grpo_verl_ext.verl_plugin.algorithms import ESTIMATOR_FUNCTIONS, LOSS_FUNCTIONS
from grpo_verl_ext.verl_plugin.wire import GROUPS, GroupRows, no_drift

if TYPE_CHECKING:
    from verl.workers.config import ActorConfig

    from grpo_verl_ext.verl_plugin.losses.custom import PolicyLoss

catalogue.enter_foreign()
ALGORITHMS: Mapping[str, Algorithm] = {
    name: algorithm
    for name, algorithm in sorted(
        catalogue.ALGORITHMS.items(), key=lambda each: each[0] not in catalogue.LOSSES
    )
    if isinstance(algorithm.estimator, Estimator) and not algorithm.estimator.needs_steps
}
"""Algorithms whose advantages follow from a dump's scores, those with a loss of their own first."""

MICRO_BATCH_SIZE = 8
"""Responses in a local batch of bnpo: TRL's default ``per_device_train_batch_size``."""


@dataclass(frozen=True)
class StepResponses:
    """The responses of one training step; (B,) each.

    Attributes:
        lengths: tokens, ≥ 1.
        group: from `dense_group_ids`.
    """

    rewards: Tensor
    lengths: Tensor
    group: Tensor

    @classmethod
    def of(cls, scores: Sequence[float], lengths: Sequence[int], groups: Sequence[str]) -> StepResponses:
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

    def has_no_signal(self) -> Tensor:
        """Whether each response is in a group with equal scores, that is, advantages of 0: (B,) bool."""
        everyone = torch.ones(self.size, dtype=torch.bool)
        return group_sum(adv.centred(self.rewards, self.group, everyone).ne(0).long(), self.group) == 0


def token_weights(name: str, step: StepResponses, micro_batch_size: int) -> Tensor:
    """Return w_i, the weight of each token of response i, (B,), up to a factor of the step.

    All tokens of a response share one leaf, whose gradient is the sum of theirs: it does not matter what the
    log-probs are, only that their ratio to the old ones is 1.

    Args:
        name: key of `ALGORITHMS`.
    """
    algorithm = ALGORITHMS[name]
    advantages, config, loss_fn = _advantages(algorithm, step), _config(algorithm, step), _loss(algorithm)
    sums = torch.zeros(step.size)
    for rows in micro_batches(step.size, micro_batch_size):
        mask = step.mask(rows)
        log_prob = torch.zeros(len(rows), 1, requires_grad=True)
        log_probs = log_prob.expand(mask.shape)
        with GROUPS.set(_group_rows(step, rows)):
            loss, _ = loss_fn(
                old_log_prob=log_probs.detach(),
                log_prob=log_probs,
                advantages=advantages[rows, : mask.shape[-1]],
                response_mask=mask,
                loss_agg_mode=algorithm.loss_agg_mode,
                config=config,
            )
        (gradient,) = torch.autograd.grad(loss, log_prob)
        sums[rows] = -gradient.squeeze(-1)
    return sums / step.lengths


def _advantages(algorithm: Algorithm, step: StepResponses) -> Tensor:
    mask = step.mask()
    rewards = torch.zeros(mask.shape)
    rewards[torch.arange(step.size), step.lengths - 1] = step.rewards
    preset = PRESETS.get(algorithm.name)
    options = {"grpo_ext": {"scale_rewards": preset.scale_rewards if preset else None}}
    estimator = ESTIMATOR_FUNCTIONS[algorithm.estimator.name]
    advantages, _ = estimator(rewards, mask.long(), index=step.group.numpy(), config=options)
    return advantages


def _loss(algorithm: Algorithm) -> PolicyLoss:
    from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY

    loss: PolicyLoss = {**POLICY_LOSS_REGISTRY, **LOSS_FUNCTIONS}[algorithm.loss.name]
    return loss


def _config(algorithm: Algorithm, step: StepResponses) -> ActorConfig:
    from verl.workers.config import ActorConfig

    from grpo_verl_ext.verl_plugin.loss_config import LossConfig

    preset = PRESETS.get(algorithm.name) or Preset()
    config = ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        policy_loss=LossConfig(loss_mode=algorithm.loss.name, **preset.options),
        loss_agg_mode=algorithm.loss_agg_mode,
        loss_scale_factor=1,
        **preset.numbers,
    )
    config.global_batch_info.update(  # as verl's ppo_loss does
        dp_size=1, batch_num_tokens=step.tokens, global_batch_size=step.size, loss_scale_factor=1
    )
    return config


def _group_rows(step: StepResponses, rows: Tensor) -> GroupRows:
    zeros = torch.zeros(len(rows))
    return GroupRows(
        index=step.group[rows],
        size=step.group_size[rows],
        drift=no_drift,
        old_deviation=zeros,
        anchor_deviation=zeros,
    )


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
