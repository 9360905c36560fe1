"""Metrics of a loss that verl averages correctly over micro-batches and ranks.

verl averages the metrics of a loss over micro-batches and ranks with equal weights. With equally many
responses per micro-batch, metrics are scaled here so that this average is exactly the mean over the
mini-batch (so one micro-batch's value may exceed 1). With dynamic batching, where micro-batches have about
equally many tokens, it is exact up to that balance.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from grpo_verl_ext.algorithms import advantages as adv
from grpo_verl_ext.algorithms import aggregation
from grpo_verl_ext.catalogue.averages import MiniBatch

if TYPE_CHECKING:
    from verl.workers.config import ActorConfig


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
