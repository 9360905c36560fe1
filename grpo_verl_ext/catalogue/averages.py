"""How a loss averages its tokens, and its metrics, over the whole mini-batch, however it is split.

Each average is a function of `algorithms.aggregation` with the counts of the mini-batch that verl's
``ppo_loss`` puts into the actor's configuration.

verl averages the metrics of a loss over micro-batches and ranks with equal weights. With equally many
responses per micro-batch, `metrics_of` scales them so that this average is exactly the mean over the
mini-batch (so one micro-batch's value may exceed 1). With dynamic batching, where micro-batches have about
equally many tokens, it is exact up to that balance.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from grpo_verl_ext.algorithms import advantages as adv
from grpo_verl_ext.algorithms import aggregation
from grpo_verl_ext.utils.errors import Line, SettingError
from grpo_verl_ext.utils.keys import AGGREGATION, SCALE_FACTOR
from grpo_verl_ext.utils.options import is_number

_COUNTS = ("dp_size", "batch_num_tokens", "global_batch_size")
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
    def from_config(cls, config: Any) -> "MiniBatch":
        """Read ``config.global_batch_info``; a local count instead would make a loss split-dependent."""
        counts = {key: config.global_batch_info.get(key) for key in _COUNTS}
        for key, value in counts.items():
            if value is None:
                raise ValueError(
                    f"config.global_batch_info[{key!r}] is None; valid is the number for the whole "
                    f"mini-batch over all ranks, which verl's ppo_loss fills in. "
                    f"Type: config.global_batch_info[{key!r}] = <number>"
                )
        return cls(**counts, group_size=config.rollout_n, loss_scale_factor=config.loss_scale_factor)

    def mean(self, per_response: Tensor) -> Tensor:
        """Return this micro-batch's share of a mean over the mini-batch's prompts: (B,) → ()."""
        return aggregation.response_prompt_mean(
            per_response, self.global_batch_size, self.group_size, self.dp_size
        )


@dataclass(frozen=True)
class Average:
    """An average of tokens' losses.

    Attributes:
        mode: the ``actor.loss_agg_mode`` by which verl must aggregate KL and entropy; where verl has no
            exact counterpart, the nearest.
        formula: of `algorithms.aggregation`.
        counts: what it takes of the `MiniBatch`, beside the number of ranks.
        depends_on_split: by definition, it depends on micro-batches and ranks.
    """

    mode: str
    formula: Callable[..., Tensor]
    counts: tuple[str, ...]
    depends_on_split: bool = False

    def reduce(self, loss: Tensor, response_mask: Tensor, mini_batch: MiniBatch) -> Tensor:
        """Return the average over the mini-batch: (B, T) → ()."""
        counts = {name: getattr(mini_batch, name) for name in (*self.counts, "dp_size")}
        factor = counts.get("loss_scale_factor", 1)
        if not (is_number(factor) and factor > 0):
            raise SettingError(
                SCALE_FACTOR,
                mini_batch.loss_scale_factor,
                why=f"{AGGREGATION}={self.mode} divides by it",
                valid="a number > 0, the response budget",
                fix=Line(f"{SCALE_FACTOR}=${{data.max_response_length}}"),
            )
        return self.formula(loss, response_mask, **counts)


_ROWS = "global_batch_size"
_TOKEN_SUM = partial(aggregation.sequence_mean_constant_length, loss_scale_factor=1)
_TOKEN_SUM.__doc__ = "D/B · Σ_i Σ_t m ℓ: (B, T) → (); tokens are summed."
AVERAGES = {
    mode: Average(mode, formula, counts)
    for mode, formula, counts in (
        ("token-mean", aggregation.token_mean, ("batch_num_tokens",)),
        ("seq-mean-token-mean", aggregation.sequence_mean_token_mean, (_ROWS,)),
        ("seq-mean-token-sum", _TOKEN_SUM, (_ROWS,)),
        ("seq-mean-token-sum-norm", aggregation.sequence_mean_constant_length, (_ROWS, "loss_scale_factor")),
    )
}
"""The averages that ``actor.loss_agg_mode`` names, by its values."""
PROMPT_MEAN = Average("token-mean", aggregation.prompt_mean, (_ROWS, "group_size"))
"""DAPO's as printed, for advantages that carry 1/N_x."""
LOCAL_TOKEN_MEAN = Average("token-mean", aggregation.local_token_mean, (_ROWS,), depends_on_split=True)
"""TRL's BNPO: the mean over the tokens of each micro-batch."""


def averaged(loss: Tensor, response_mask: Tensor, loss_agg_mode: str, mini_batch: MiniBatch) -> Tensor:
    """verl's ``loss_agg_mode`` with denominators of the whole mini-batch: (B, T) → ()."""
    if loss_agg_mode not in (*AVERAGES,):
        fix = Line(f"{AGGREGATION}=token-mean")
        raise SettingError(AGGREGATION, loss_agg_mode, valid=(*AVERAGES,), fix=fix)
    return AVERAGES[loss_agg_mode].reduce(loss, response_mask, mini_batch)


def metrics_of(
    values: Mapping[str, Tensor], response_mask: Tensor, config: Any, mini_batch: MiniBatch
) -> dict[str, Tensor]:
    """Return the token mean of each value, (B, T) → (), and the share of truncated responses.

    ``actor/frac_truncated`` needs the budget, and counts rows without tokens among the others. Differs from
    verl's ``response_length/clip_ratio``: the responses as long as the longest of the batch are the truncated
    ones only if ``response_length/max`` is the budget.
    """
    counts = mini_batch.batch_num_tokens, mini_batch.global_batch_size
    means = {
        name: aggregation.micro_batch_token_mean(value, response_mask)
        if config.use_dynamic_bsz
        else aggregation.evenly_weighted_token_mean(value, response_mask, *counts)
        for name, value in values.items()
    }
    budget = config.policy_loss.get("max_response_length")
    if budget is not None:
        truncated = adv.is_truncated(response_mask, budget)
        means["actor/frac_truncated"] = (
            aggregation.evenly_weighted_response_mean(truncated, response_mask, *counts)
            if config.use_dynamic_bsz
            else truncated.sum() / max(len(truncated), 1)
        )
    return means
