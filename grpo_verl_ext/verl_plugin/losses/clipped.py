"""Losses with the clipped surrogate; each is a function that reduces it, decorated with `policy_loss`.

All use ``clip_ratio_low``, ``clip_ratio_high`` and, unless null, ``clip_ratio_c``, and differ only in the
reduction. Their metrics are token means (`normalization`).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from grpo_verl_ext.algorithms import aggregation, surrogate
from grpo_verl_ext.verl_plugin.losses.normalization import MiniBatch, PolicyLoss, Variant, metrics_of

if TYPE_CHECKING:
    from verl.workers.config import ActorConfig


class Tokens(NamedTuple):
    """The first arguments of all functions of `surrogate`, (B, T) each."""

    log_prob: Tensor
    old_log_prob: Tensor
    advantages: Tensor
    response_mask: Tensor


class ClipRange(NamedTuple):
    """Clip range ε_low, ε_high (null: ``clip_ratio``, as in verl), and c of the dual clip or None."""

    low: float
    high: float
    c: float | None

    @classmethod
    def from_config(cls, config: "ActorConfig") -> "ClipRange":
        """Read ``clip_ratio_low``, ``clip_ratio_high``, ``clip_ratio`` and ``clip_ratio_c``."""
        low, high, c = config.clip_ratio_low, config.clip_ratio_high, config.clip_ratio_c
        default = config.clip_ratio
        return cls(
            # An integer may exceed torch's range.
            low=float(default if low is None else low),
            high=float(default if high is None else high),
            c=None if c is None else float(c),
        )


VARIANTS: dict[str, Variant] = {}
"""Losses of this file by name."""

Reduce = Callable[[Tensor, Tensor, MiniBatch], Tensor]
"""(loss (B, T), response_mask (B, T), counts) → ()."""


def policy_loss(
    loss_agg_mode: str, adv_estimator: str, *, paired: bool = False, depends_on_split: bool = False
) -> Callable[[Reduce], PolicyLoss]:
    """Register an aggregation of the clipped surrogate in `VARIANTS` under its name; see `Variant`."""

    def entered(reduce: Reduce) -> PolicyLoss:
        loss = _of_verl(reduce)
        VARIANTS[reduce.__name__] = Variant(loss, loss_agg_mode, adv_estimator, paired, depends_on_split)
        return loss

    return entered


def _of_verl(reduce: Reduce) -> PolicyLoss:
    """Return a loss with verl's signature and our metrics from an aggregation of the clipped surrogate."""
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
        mini_batch = MiniBatch.from_config(config)
        tokens = Tokens(log_prob, old_log_prob, advantages, response_mask)
        loss = _clipped(tokens, config)
        if rollout_is_weights is not None:
            loss = surrogate.reweighted(loss, rollout_is_weights, response_mask)
        return reduce(loss, response_mask, mini_batch), _metrics(tokens, config, mini_batch)

    loss_fn.__name__ = loss_fn.__qualname__ = name
    loss_fn.__doc__ = reduce.__doc__
    return loss_fn


@policy_loss("seq-mean-token-mean", "grpo_outcome")
def grpo(loss: Tensor, response_mask: Tensor, mini_batch: MiniBatch) -> Tensor:
    """Average as GRPO, every response with equal weight: `aggregation.sequence_mean_token_mean`."""
    return aggregation.sequence_mean_token_mean(
        loss, response_mask, mini_batch.global_batch_size, mini_batch.dp_size
    )


@policy_loss("token-mean", "grpo_outcome", depends_on_split=True)
def bnpo(loss: Tensor, response_mask: Tensor, mini_batch: MiniBatch) -> Tensor:
    """Average as TRL's BNPO, tokens of each micro-batch: `aggregation.local_token_mean`; split-dependent."""
    return aggregation.local_token_mean(loss, response_mask, mini_batch.global_batch_size, mini_batch.dp_size)


@policy_loss("token-mean", "dapo")
def dapo(loss: Tensor, response_mask: Tensor, mini_batch: MiniBatch) -> Tensor:
    """Average as DAPO over the mini-batch, every token with equal weight: `aggregation.token_mean`."""
    return aggregation.token_mean(loss, response_mask, mini_batch.batch_num_tokens, mini_batch.dp_size)


@policy_loss("token-mean", "dapo_per_prompt", paired=True)
def dapo_per_prompt(loss: Tensor, response_mask: Tensor, mini_batch: MiniBatch) -> Tensor:
    """Average as DAPO's printed formula, every prompt with equal weight: `aggregation.prompt_mean`.

    Needs the estimator of the same name, whose advantages carry the weight 1/N_x.
    """
    return aggregation.prompt_mean(
        loss, response_mask, mini_batch.global_batch_size, mini_batch.group_size, mini_batch.dp_size
    )


@policy_loss("seq-mean-token-sum-norm", "dr_grpo")
def dr_grpo(loss: Tensor, response_mask: Tensor, mini_batch: MiniBatch) -> Tensor:
    """Sum tokens and divide by Dr. GRPO's constant: `aggregation.sequence_mean_constant_length`."""
    assert mini_batch.loss_scale_factor is not None  # `check_loss` refused null
    return aggregation.sequence_mean_constant_length(
        loss, response_mask, mini_batch.global_batch_size, mini_batch.loss_scale_factor, mini_batch.dp_size
    )


def _clipped(tokens: Tokens, config: "ActorConfig") -> Tensor:
    clip = ClipRange.from_config(config)
    if clip.c is None:
        return surrogate.clipped_surrogate(*tokens, clip_ratio_low=clip.low, clip_ratio_high=clip.high)
    return surrogate.dual_clipped_surrogate(
        *tokens, clip_ratio_low=clip.low, clip_ratio_high=clip.high, clip_ratio_c=clip.c
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
        clip_ratio_c=clip.c,
    )
    values = {
        "actor/pg_clipfrac": events.clipped_low | events.clipped_high,
        "actor/pg_clipfrac_lower": events.dual_clipped,
        "actor/clip_ratio_low": events.clipped_low,
        "actor/clip_ratio_high": events.clipped_high,
        "actor/frac_zero_advantage": events.zero_advantage,
        "actor/ppo_kl": -log_ratio,
        "actor/entropy_per_token": -tokens.old_log_prob,
    }
    return metrics_of(values, tokens.response_mask, config, mini_batch)
