"""Losses with a clipped surrogate; each is a function that reduces it, decorated with `policy_loss`.

All but gmpo have the surrogate `CLIPPED`, with ``clip_ratio_low``, ``clip_ratio_high`` and, unless null,
``clip_ratio_c``, and differ only in the reduction. ``policy_loss.off_policy_mask_threshold`` is an option of
all. Their metrics are token means (`normalization`).
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


class Surrogate(NamedTuple):
    """A loss per token, and which tokens its clip cut off."""

    loss: Callable[[Tokens, ClipRange], Tensor]
    events: Callable[[Tensor, Tokens, ClipRange], surrogate.TokenEvents]
    """(log-ratio (B, T), tokens, clip range) → events."""


def _clipped(tokens: Tokens, clip: ClipRange) -> Tensor:
    if clip.c is None:
        return surrogate.clipped_surrogate(*tokens, clip_ratio_low=clip.low, clip_ratio_high=clip.high)
    return surrogate.dual_clipped_surrogate(
        *tokens, clip_ratio_low=clip.low, clip_ratio_high=clip.high, clip_ratio_c=clip.c
    )


def _clipped_events(log_ratio: Tensor, tokens: Tokens, clip: ClipRange) -> surrogate.TokenEvents:
    return surrogate.token_events(
        log_ratio,
        tokens.advantages,
        tokens.response_mask,
        clip_ratio_low=clip.low,
        clip_ratio_high=clip.high,
        clip_ratio_c=clip.c,
    )


def _geometric(tokens: Tokens, clip: ClipRange) -> Tensor:
    return surrogate.geometric_mean_surrogate(*tokens, log_clip_low=clip.low, log_clip_high=clip.high)


def _geometric_events(log_ratio: Tensor, tokens: Tokens, clip: ClipRange) -> surrogate.TokenEvents:
    return surrogate.geometric_mean_events(
        log_ratio,
        tokens.advantages,
        tokens.response_mask,
        log_clip_low=clip.low,
        log_clip_high=clip.high,
    )


CLIPPED = Surrogate(_clipped, _clipped_events)
GEOMETRIC_MEAN = Surrogate(_geometric, _geometric_events)


def policy_loss(
    loss_agg_mode: str,
    adv_estimator: str,
    form: Surrogate = CLIPPED,
    *,
    paired: bool = False,
    depends_on_split: bool = False,
) -> Callable[[Reduce], PolicyLoss]:
    """Register an aggregation of a surrogate in `VARIANTS` under its name; see `Variant`."""

    def entered(reduce: Reduce) -> PolicyLoss:
        loss = _of_verl(reduce, form)
        VARIANTS[reduce.__name__] = Variant(loss, loss_agg_mode, adv_estimator, paired, depends_on_split)
        return loss

    return entered


def _of_verl(reduce: Reduce, form: Surrogate) -> PolicyLoss:
    """Return a loss with verl's signature and our metrics from an aggregation of a surrogate."""
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
        mini_batch, clip = MiniBatch.from_config(config), ClipRange.from_config(config)
        tokens = Tokens(log_prob, old_log_prob, advantages, response_mask)
        loss = form.loss(tokens, clip)
        kept = _on_policy(tokens, config)
        if kept is not None:
            loss = surrogate.reweighted(loss, kept, response_mask)
        if rollout_is_weights is not None:
            loss = surrogate.reweighted(loss, rollout_is_weights, response_mask)
        log_ratio = surrogate.token_log_ratio(log_prob.detach(), old_log_prob, response_mask)
        events = form.events(log_ratio, tokens, clip)
        values = _values(events) | {"actor/ppo_kl": -log_ratio, "actor/entropy_per_token": -old_log_prob}
        if kept is not None:
            values["actor/frac_off_policy_masked"] = ~kept
        metrics = metrics_of(values, response_mask, config, mini_batch)
        return reduce(loss, response_mask, mini_batch), metrics

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


@policy_loss("seq-mean-token-mean", "grpo_outcome", GEOMETRIC_MEAN)
def gmpo(loss: Tensor, response_mask: Tensor, mini_batch: MiniBatch) -> Tensor:
    """Average GMPO's surrogate over the mini-batch's responses: `surrogate.geometric_mean_surrogate`.

    ``clip_ratio_low`` and ``clip_ratio_high`` are a range of log ρ, in nats, as in verl's ``geo_mean``.
    """
    return aggregation.sequence_mean_token_mean(
        loss, response_mask, mini_batch.global_batch_size, mini_batch.dp_size
    )


def _on_policy(tokens: Tokens, config: "ActorConfig") -> Tensor | None:
    threshold = config.policy_loss.get("off_policy_mask_threshold")
    return None if threshold is None else surrogate.off_policy_mask(*tokens, threshold=float(threshold))


def _values(events: surrogate.TokenEvents) -> dict[str, Tensor]:
    return {
        "actor/pg_clipfrac": events.clipped_low | events.clipped_high,
        "actor/pg_clipfrac_lower": events.dual_clipped,
        "actor/clip_ratio_low": events.clipped_low,
        "actor/clip_ratio_high": events.clipped_high,
        "actor/frac_zero_advantage": events.zero_advantage,
    }
