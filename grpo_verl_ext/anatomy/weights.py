"""Compute the weight that each algorithm gives a token at the first update, by autograd of its loss.

There π_θ = π_old: every ratio is 1, no clip acts, and all that distinguishes the algorithms is a weight

    w_{i,t} = −∂L/∂log π_θ(o_{i,t}),

the same for all tokens of a response. The batch of a step is treated as one mini-batch. Losses are evaluated
in micro-batches, which bounds the memory and changes only bnpo, by definition the mean over the local batch.
Factors that all tokens of a step share (β, Dr. GRPO's L, the number of prompts) cancel in `relative`, so they
are 1 here. The weights are averaged over responses of similar length, right and wrong (`cells_of`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from grpo_verl_ext import catalogue
from grpo_verl_ext.algorithms import advantages as adv
from grpo_verl_ext.algorithms.groups import dense_group_ids, group_sum
from grpo_verl_ext.algorithms.gvpo import GroupRows
from grpo_verl_ext.catalogue import PRESETS, Algorithm, Estimator, Preset, TokenLoss
from grpo_verl_ext.verl_plugin.algorithms import ESTIMATOR_FUNCTIONS, LOSS_FUNCTIONS
from grpo_verl_ext.verl_plugin.wire import GROUPS

if TYPE_CHECKING:
    from verl.workers.config import ActorConfig

    from grpo_verl_ext.verl_plugin.losses.custom import PolicyLoss

catalogue.enter_foreign()
COMPARED_ALGORITHMS: Mapping[str, Algorithm] = {
    name: algorithm
    for name, algorithm in sorted(
        catalogue.ALGORITHMS.items(), key=lambda each: each[0] not in catalogue.LOSSES
    )
    if isinstance(algorithm.estimator, Estimator)
    and not algorithm.estimator.needs_steps
    and not algorithm.estimator.several_rewards
    and not algorithm.estimator.needs_teacher
    and not (isinstance(algorithm.loss, TokenLoss) and algorithm.loss.needs)
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
        name: key of `COMPARED_ALGORITHMS`.
    """
    algorithm = COMPARED_ALGORITHMS[name]
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
        drift=zeros,
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


MOST_BINS = 5
_ALIKE = 3
"""Variants whose weights agree to this many decimals share a column, a line or a mark."""


@dataclass(frozen=True)
class Weighed:
    """The responses of all steps that have a gradient, with their weights; (N,) each.

    Attributes:
        right: bool, whether the answer is right.
        weights: variant → the weight of a token of each response, from `relative`.
    """

    lengths: Tensor
    right: Tensor
    weights: dict[str, Tensor]


@dataclass(frozen=True)
class Cell:
    """Responses of a range of lengths, and each variant's mean weights; None where there is no response.

    Attributes:
        right: whether the cell has the right or the wrong responses; None: both.
        weight: mean of |w| over the tokens; 1 is the average token of all cells.
        signed_weight: mean of w over the tokens; below 0, the update makes the tokens less likely.
        share: share of the gradient, Σ|w| here over Σ|w| everywhere.
    """

    shortest: int
    longest: int
    right: bool | None
    responses: int
    tokens: int
    weight: dict[str, float | None]
    signed_weight: dict[str, float | None]
    share: dict[str, float]

    @property
    def lengths(self) -> str:
        """The range of lengths, as text for a table."""
        return f"{self.shortest}" if self.shortest == self.longest else f"{self.shortest}–{self.longest}"

    @property
    def mean_length(self) -> float:
        """Tokens per response; the cell must have one."""
        return self.tokens / self.responses


@dataclass(frozen=True)
class Cells:
    """The same responses, grouped in three ways.

    Attributes:
        by_answer: the right ones, then the wrong ones.
        by_both: for each length the right ones, then the wrong ones.
    """

    by_length: list[Cell]
    by_answer: list[Cell]
    by_both: list[Cell]


def cells_of(weighed: Weighed) -> Cells:
    """Group responses by length into at most `MOST_BINS` bins of similar size; equal lengths share a bin."""
    upper = upper_edges(weighed.lengths)
    bins = torch.bucketize(weighed.lengths, upper)
    inside = [bins == number for number in range(len(upper))]
    everywhere = torch.ones_like(weighed.right)
    return Cells(
        by_length=[_cell(weighed, chosen, None) for chosen in inside],
        by_answer=[_cell(weighed, everywhere, right) for right in (True, False)],
        by_both=[_cell(weighed, chosen, right) for chosen in inside for right in (True, False)],
    )


def alike(cells: list[Cell]) -> list[list[str]]:
    """Group the variants that weight these responses equally."""
    groups: dict[tuple[float, ...], list[str]] = {}
    for name in cells[0].share:
        key = tuple(round(cell.weight[name] or 0.0, _ALIKE) for cell in cells)
        groups.setdefault(key, []).append(name)
    return list(groups.values())


def upper_edges(lengths: Tensor) -> Tensor:
    """Return the longest length in each bin, in rising order: (N,) → (≤ `MOST_BINS`,)."""
    quantiles = np.arange(1, MOST_BINS + 1) / MOST_BINS
    return torch.from_numpy(np.unique(np.quantile(lengths.numpy(), quantiles, method="inverted_cdf")))


def _cell(weighed: Weighed, chosen: Tensor, right: bool | None) -> Cell:
    lengths = weighed.lengths[chosen]
    here = chosen if right is None else chosen & (weighed.right == right)
    tokens = int(weighed.lengths[here].sum())

    def per_token(weights: Tensor) -> float | None:
        return float((weights * weighed.lengths)[here].sum()) / tokens if tokens else None

    def share(weights: Tensor) -> float:
        mass = weights.abs() * weighed.lengths
        return float(mass[here].sum() / mass.sum())

    weights = {name: values.double() for name, values in weighed.weights.items()}
    return Cell(
        shortest=int(lengths.min()),
        longest=int(lengths.max()),
        right=right,
        responses=int(here.sum()),
        tokens=tokens,
        weight={name: per_token(values.abs()) for name, values in weights.items()},
        signed_weight={name: per_token(values) for name, values in weights.items()},
        share={name: share(values) for name, values in weights.items()},
    )
