"""Read the mini-batch counts that every loss needs, and compute metrics that verl averages correctly.

verl averages the metrics of a loss over micro-batches and ranks with equal weights. With equally many
responses per micro-batch, metrics are scaled here so that this average is exactly the mean over the
mini-batch (so one micro-batch's value may exceed 1). With dynamic batching, where micro-batches have about
equally many tokens, it is exact up to that balance.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from grpo_verl_ext.algorithms import advantages as adv
from grpo_verl_ext.algorithms import aggregation

if TYPE_CHECKING:
    from verl.workers.config import ActorConfig

PolicyLoss = Callable[..., tuple[Tensor, dict[str, Tensor]]]


class Variant(NamedTuple):
    """A loss of this package and the settings that belong to it.

    Attributes:
        loss: the function that verl calls for each micro-batch.
        loss_agg_mode: the ``actor.loss_agg_mode`` by which verl must aggregate KL and entropy; bnpo and
            dapo_per_prompt have no exact counterpart in verl and use the nearest, ``token-mean``.
        adv_estimator: the ``algorithm.adv_estimator`` with which the loss is the paper's algorithm.
        paired: whether estimator and loss are each wrong without the other.
        depends_on_split: whether, by definition, it depends on micro-batches and ranks.
    """

    loss: PolicyLoss
    loss_agg_mode: str
    adv_estimator: str
    paired: bool = False
    depends_on_split: bool = False


COUNTS = ("dp_size", "batch_num_tokens", "global_batch_size")
"""Keys of ``config.global_batch_info`` that every loss needs."""


@dataclass(frozen=True)
class MiniBatch:
    """Counts of the mini-batch over all ranks and micro-batches, and the number of ranks ``dp_size``."""

    dp_size: int
    batch_num_tokens: int
    global_batch_size: int
    group_size: int
    loss_scale_factor: float | None

    @classmethod
    def from_config(cls, config: "ActorConfig") -> "MiniBatch":
        """Read the counts that verl's ``ppo_loss`` puts into ``config.global_batch_info``.

        Raises:
            ValueError: a count is missing; a local one instead would make the loss split-dependent.
        """
        counts = {key: config.global_batch_info.get(key) for key in COUNTS}
        for key, value in counts.items():
            if value is None:
                raise ValueError(
                    f"config.global_batch_info[{key!r}] is None; valid is the number for the whole "
                    f"mini-batch over all ranks, which verl's ppo_loss fills in. "
                    f"Type: config.global_batch_info[{key!r}] = <number>"
                )
        return cls(**counts, group_size=config.rollout_n, loss_scale_factor=config.loss_scale_factor)


def metrics_of(
    values: Mapping[str, Tensor], response_mask: Tensor, config: "ActorConfig", mini_batch: MiniBatch
) -> dict[str, Tensor]:
    """Return the token mean of each value, (B, T) → (), and the share of truncated responses."""
    means = {name: _token_mean(value, response_mask, config, mini_batch) for name, value in values.items()}
    return means | _truncated_share(response_mask, config, mini_batch)


def _token_mean(value: Tensor, response_mask: Tensor, config: "ActorConfig", mini_batch: MiniBatch) -> Tensor:
    if config.use_dynamic_bsz:
        return aggregation.micro_batch_token_mean(value, response_mask)
    return aggregation.evenly_weighted_token_mean(
        value, response_mask, mini_batch.batch_num_tokens, mini_batch.global_batch_size
    )


def _truncated_share(
    response_mask: Tensor, config: "ActorConfig", mini_batch: MiniBatch
) -> dict[str, Tensor]:
    """Return ``actor/frac_truncated``, the share of truncated responses, if the budget is set.

    Differs from verl's ``response_length/clip_ratio``, the share of responses as long as the longest of the
    batch: these are the truncated ones only if ``response_length/max`` is the budget.
    """
    budget = config.policy_loss.get("max_response_length")
    if budget is None:
        return {}
    truncated = adv.is_truncated(response_mask, budget)
    if not config.use_dynamic_bsz:
        return {"actor/frac_truncated": truncated.sum() / max(len(truncated), 1)}
    share = aggregation.evenly_weighted_response_mean(
        truncated, response_mask, mini_batch.batch_num_tokens, mini_batch.global_batch_size
    )
    return {"actor/frac_truncated": share}
