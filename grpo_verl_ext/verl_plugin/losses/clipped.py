"""Policy losses with verl's signature; `LOSSES` names them for ``actor.policy_loss.loss_mode``.

verl calls one per micro-batch from its ``ppo_loss``, with (B, T) tensors and ``config`` the ActorConfig,
whose ``global_batch_info`` holds the counts of the whole mini-batch. Each loss owns its aggregation, so its
value and gradient do not depend on the split into micro-batches and ranks (bnpo, by definition, does).
All share the clipped surrogate with ``clip_ratio_low``, ``clip_ratio_high`` and, unless null,
``clip_ratio_c``; they differ in how they reduce it, which is what the functions below say.

Metrics are token means. verl averages them over micro-batches and ranks with equal weights. With
micro-batches of equally many responses they are scaled so that this average is exactly the token mean of the
mini-batch (one part of it may thus exceed 1); with dynamic batching, which makes micro-batches of about
equally many tokens, each reports its own token mean, and the average is exact up to that balance.
``actor/frac_truncated``, where the response budget is known (`loss_config.LossConfig`), is weighted likewise
and counts responses. verl's ``response_length/clip_ratio`` is something else: the share of responses as long
as the longest of the batch, which is the truncated ones only where ``response_length/max`` is the budget.

The KL to the reference is verl's to report. A registered loss gets no ``ref_log_prob`` and a registered
estimator no log-probs; ``ppo_loss`` reads them afterwards and computes one estimator, ``actor/kl_loss``, by
``kl_loss_type``: ``kl`` is k1, ``mse`` k2, ``low_var_kl`` k3 (limited to 10), and a ``+`` changes
the gradient alone. It needs ``use_kl_loss``, is exact for the mini-batch, and is reduced by
``loss_agg_mode``, so it is nats per token for all but dr_grpo; ``kl_loss_coef=0`` measures it and leaves the
loss alone. With ``algorithm.use_kl_in_reward``, ``actor/reward_kl_penalty`` is ``algorithm.kl_penalty`` of
the policy before the update, a mean over responses.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from grpo_verl_ext.algorithms import advantages as adv
from grpo_verl_ext.algorithms import aggregation, surrogate
from grpo_verl_ext.verl_plugin.settings import check_loss

if TYPE_CHECKING:
    from verl.workers.config import ActorConfig

PolicyLoss = Callable[..., tuple[Tensor, dict[str, Tensor]]]


COUNTS = ("dp_size", "batch_num_tokens", "global_batch_size")
"""Keys of ``config.global_batch_info`` that every loss needs."""


class Tokens(NamedTuple):
    """The arguments that all functions of `surrogate` start with, (B, T) each."""

    log_prob: Tensor
    old_log_prob: Tensor
    advantages: Tensor
    response_mask: Tensor


@dataclass(frozen=True)
class MiniBatch:
    """Counts of the mini-batch over all ranks and micro-batches, and what verl's gradient average needs."""

    dp_size: int
    batch_num_tokens: int
    global_batch_size: int
    group_size: int
    loss_scale_factor: float | None

    @classmethod
    def from_config(cls, config: "ActorConfig") -> "MiniBatch":
        """Take the counts from ``config.global_batch_info``, where verl's ``ppo_loss`` puts them.

        Raises:
            ValueError: a count is missing; a local one in its place would make the loss split-dependent.
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


class ClipRange(NamedTuple):
    """ε_low and ε_high; null falls back to ``clip_ratio``, as in verl."""

    low: float
    high: float

    @classmethod
    def from_config(cls, config: "ActorConfig") -> "ClipRange":
        """Read ``clip_ratio_low``, ``clip_ratio_high`` and ``clip_ratio``."""
        low, high = config.clip_ratio_low, config.clip_ratio_high
        return cls(config.clip_ratio if low is None else low, config.clip_ratio if high is None else high)


def policy_loss(reduce: Callable[[Tensor, Tensor, MiniBatch], Tensor]) -> PolicyLoss:
    """Give an aggregation of the clipped surrogate verl's signature, the checks and the metrics."""
    name = reduce.__name__

    def loss_fn(
        *,
        old_log_prob: Tensor,
        log_prob: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        config: "ActorConfig",
        rollout_is_weights: Tensor | None = None,
        **_: object,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        check_loss(name, config)
        mini_batch = MiniBatch.from_config(config)
        tokens = Tokens(log_prob, old_log_prob, advantages, response_mask)
        loss = _clipped(tokens, config)
        if rollout_is_weights is not None:
            loss = surrogate.reweighted(loss, rollout_is_weights, response_mask)
        return reduce(loss, response_mask, mini_batch), _metrics(tokens, config, mini_batch)

    loss_fn.__name__ = loss_fn.__qualname__ = name
    loss_fn.__doc__ = reduce.__doc__
    return loss_fn


@policy_loss
def grpo(loss: Tensor, response_mask: Tensor, mini_batch: MiniBatch) -> Tensor:
    """GRPO: every response weighs the same, `aggregation.sequence_mean_token_mean`."""
    return aggregation.sequence_mean_token_mean(
        loss, response_mask, mini_batch.global_batch_size, mini_batch.dp_size
    )


@policy_loss
def bnpo(loss: Tensor, response_mask: Tensor, mini_batch: MiniBatch) -> Tensor:
    """BNPO as in TRL: token mean of each micro-batch, `aggregation.local_token_mean`; split-dependent."""
    return aggregation.local_token_mean(loss, response_mask, mini_batch.global_batch_size, mini_batch.dp_size)


@policy_loss
def dapo(loss: Tensor, response_mask: Tensor, mini_batch: MiniBatch) -> Tensor:
    """DAPO over the mini-batch: every token weighs the same, `aggregation.token_mean`."""
    return aggregation.token_mean(loss, response_mask, mini_batch.batch_num_tokens, mini_batch.dp_size)


@policy_loss
def dapo_per_prompt(loss: Tensor, response_mask: Tensor, mini_batch: MiniBatch) -> Tensor:
    """DAPO as printed: every prompt weighs the same, `aggregation.prompt_mean`.

    Needs the estimator of the same name, whose advantages carry the weight 1/N_x.
    """
    return aggregation.prompt_mean(
        loss, response_mask, mini_batch.global_batch_size, mini_batch.group_size, mini_batch.dp_size
    )


@policy_loss
def dr_grpo(loss: Tensor, response_mask: Tensor, mini_batch: MiniBatch) -> Tensor:
    """Dr. GRPO: tokens summed and divided by a constant, `aggregation.sequence_mean_constant_length`."""
    assert mini_batch.loss_scale_factor is not None  # `check_loss` refused null
    return aggregation.sequence_mean_constant_length(
        loss, response_mask, mini_batch.global_batch_size, mini_batch.loss_scale_factor, mini_batch.dp_size
    )


LOSSES: dict[str, PolicyLoss] = {
    "grpo": grpo,
    "bnpo": bnpo,
    "dapo": dapo,
    "dapo_per_prompt": dapo_per_prompt,
    "dr_grpo": dr_grpo,
}


def _clipped(tokens: Tokens, config: "ActorConfig") -> Tensor:
    clip, c = ClipRange.from_config(config), config.clip_ratio_c
    if c is None:
        return surrogate.clipped_surrogate(*tokens, clip_ratio_low=clip.low, clip_ratio_high=clip.high)
    return surrogate.dual_clipped_surrogate(
        *tokens, clip_ratio_low=clip.low, clip_ratio_high=clip.high, clip_ratio_c=c
    )


def _metrics(tokens: Tokens, config: "ActorConfig", mini_batch: MiniBatch) -> dict[str, Tensor]:
    clip = ClipRange.from_config(config)
    log_ratio = surrogate.token_log_ratio(tokens.log_prob.detach(), tokens.old_log_prob, tokens.response_mask)
    events = surrogate.token_events(
        log_ratio,
        tokens.advantages,
        tokens.response_mask,
        clip_ratio_low=clip.low,
        clip_ratio_high=clip.high,
        clip_ratio_c=config.clip_ratio_c,
    )
    values = {
        "actor/pg_clipfrac": events.clipped_low | events.clipped_high,
        "actor/pg_clipfrac_lower": events.dual_clipped,
        "actor/clip_ratio_low": events.clipped_low,
        "actor/clip_ratio_high": events.clipped_high,
        "actor/frac_zero_advantage": events.zero_advantage,
        "actor/ppo_kl": -log_ratio,
    }
    metrics = {name: _mean(value, tokens.response_mask, config, mini_batch) for name, value in values.items()}
    budget = config.policy_loss.get("max_response_length")
    if budget is not None:
        truncated = adv.is_truncated(tokens.response_mask, budget)
        metrics["actor/frac_truncated"] = _share(truncated, tokens.response_mask, config, mini_batch)
    return metrics


def _mean(value: Tensor, response_mask: Tensor, config: "ActorConfig", mini_batch: MiniBatch) -> Tensor:
    if config.use_dynamic_bsz:
        return aggregation.micro_batch_token_mean(value, response_mask)
    return aggregation.evenly_weighted_token_mean(
        value, response_mask, mini_batch.batch_num_tokens, mini_batch.global_batch_size
    )


def _share(responses: Tensor, response_mask: Tensor, config: "ActorConfig", mini_batch: MiniBatch) -> Tensor:
    if config.use_dynamic_bsz:
        return aggregation.evenly_weighted_response_mean(
            responses, response_mask, mini_batch.batch_num_tokens, mini_batch.global_batch_size
        )
    return responses.float().mean()
