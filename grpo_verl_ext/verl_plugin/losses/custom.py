"""A loss of your own: from what it does to a token to normalisation, metrics and the invariance test.

    # my_losses.py
    from grpo_verl_ext.verl_plugin.losses.custom import token_loss

    @token_loss
    def reinforce(log_prob, old_log_prob, advantages, response_mask, config):
        return -advantages * log_prob

    export VERL_USE_EXTERNAL_MODULES=my_losses    # on every node; verl imports it in each process
    python3 -m verl.trainer.main_ppo … actor_rollout_ref.actor.policy_loss.loss_mode=reinforce
    grpo-verl-ext invariance --loss reinforce --loss-agg-mode token-mean

How tokens are averaged is what ``actor.loss_agg_mode`` says; each mode divides by a number of the whole
mini-batch, so that value and gradient do not depend on micro-batches or ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY

from grpo_verl_ext.algorithms import aggregation, surrogate
from grpo_verl_ext.verl_plugin.config import ACTOR
from grpo_verl_ext.verl_plugin.losses.normalization import MiniBatch, PolicyLoss, metrics_of

if TYPE_CHECKING:
    from verl.workers.config import ActorConfig

TokenLoss = Callable[[Tensor, Tensor, Tensor, Tensor, "ActorConfig"], Tensor]
"""(log_prob, old_log_prob, advantages, response_mask, config), (B, T) each → (B, T), to be minimised.

What stands under the mask does not count, NaN included. Gradient flows through ``log_prob``.
"""


class NameTakenError(ValueError):
    """Another package has already registered a function under one of our names."""


def token_loss(per_token: TokenLoss) -> TokenLoss:
    """Register a loss of tokens with verl, under the function's name, for ``policy_loss.loss_mode``.

    It gets verl's rollout weights, where they are on, and the metrics ``actor/ppo_kl``,
    ``actor/entropy_per_token``, ``actor/frac_zero_advantage`` and, with a budget, ``actor/frac_truncated``.

    Raises:
        NameTakenError: another package's loss has that name.
    """
    claim(POLICY_LOSS_REGISTRY, {per_token.__name__: _as_verl_calls_it(per_token)}, "policy loss")
    return per_token


def _as_verl_calls_it(per_token: TokenLoss) -> PolicyLoss:
    def loss_fn(
        *,
        old_log_prob: Tensor,
        log_prob: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        config: ActorConfig,
        rollout_is_weights: Tensor | None = None,
        **_: object,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        mini_batch = MiniBatch.from_config(config)
        loss = per_token(log_prob, old_log_prob, advantages, response_mask, config)
        if loss.shape != log_prob.shape:
            raise ValueError(
                f"the loss {per_token.__name__} returned shape {tuple(loss.shape)}; valid is one number per "
                f"token, {tuple(log_prob.shape)}, not yet averaged. Type: return -advantages * log_prob"
            )
        if rollout_is_weights is not None:
            loss = surrogate.reweighted(loss, rollout_is_weights, response_mask)
        values = {
            "actor/ppo_kl": -surrogate.token_log_ratio(log_prob.detach(), old_log_prob, response_mask),
            "actor/entropy_per_token": -old_log_prob,
            "actor/frac_zero_advantage": torch.eq(advantages, 0),
        }
        reduced = averaged(loss, response_mask, config.loss_agg_mode, mini_batch)
        return reduced, metrics_of(values, response_mask, config, mini_batch)

    # `claim` tells owners by module and name: importing the same file twice is harmless.
    loss_fn.__module__, loss_fn.__name__ = per_token.__module__, per_token.__name__
    loss_fn.__qualname__, loss_fn.__doc__ = per_token.__qualname__, per_token.__doc__
    return loss_fn


def averaged(loss: Tensor, response_mask: Tensor, loss_agg_mode: str, mini_batch: MiniBatch) -> Tensor:
    """verl's ``loss_agg_mode`` with denominators of the whole mini-batch: (B, T) → ().

    Raises:
        ValueError: an unknown mode, or ``seq-mean-token-sum-norm`` without its constant.
    """
    responses, dp_size = mini_batch.global_batch_size, mini_batch.dp_size
    if loss_agg_mode == "token-mean":
        return aggregation.token_mean(loss, response_mask, mini_batch.batch_num_tokens, dp_size)
    if loss_agg_mode == "seq-mean-token-mean":
        return aggregation.sequence_mean_token_mean(loss, response_mask, responses, dp_size)
    if loss_agg_mode == "seq-mean-token-sum":
        return aggregation.sequence_mean_constant_length(loss, response_mask, responses, 1.0, dp_size)
    if loss_agg_mode != "seq-mean-token-sum-norm":
        raise ValueError(
            f"{ACTOR}.loss_agg_mode is {loss_agg_mode!r}; valid are token-mean, seq-mean-token-mean, "
            f"seq-mean-token-sum, seq-mean-token-sum-norm. Type: {ACTOR}.loss_agg_mode=token-mean"
        )
    if mini_batch.loss_scale_factor is None:
        raise ValueError(
            f"{ACTOR}.loss_agg_mode is seq-mean-token-sum-norm, but {ACTOR}.loss_scale_factor is None; "
            f"valid is a number > 0. Type: '{ACTOR}.loss_scale_factor=${{data.max_response_length}}'"
        )
    return aggregation.sequence_mean_constant_length(
        loss, response_mask, responses, mini_batch.loss_scale_factor, dp_size
    )


def claim(registry: MutableMapping[str, Any], functions: Mapping[str, Callable[..., Any]], kind: str) -> None:
    """Add ``functions`` to one of verl's registries; none of them if a name is taken.

    verl silently overwrites a policy loss of the same name, hence the check here.

    Raises:
        NameTakenError: a name belongs to another package's function.
    """
    for name, function in functions.items():
        owner = registry.get(name, function)
        if _identity(owner) != _identity(function):
            raise NameTakenError(
                f"the {kind} '{name}' is already registered by {'.'.join(_identity(owner))}. "
                f"Unregister it, or load only one of the two packages: "
                f"VERL_USE_EXTERNAL_PLUGINS=<comma-separated plugin names>."
            )
    registry.update(functions)


def _identity(function: Callable[..., Any]) -> tuple[str, str]:
    """Return module and name of a function; equal for two imports of the same source."""
    kind = type(function)
    return (
        getattr(function, "__module__", kind.__module__),
        getattr(function, "__qualname__", kind.__qualname__),
    )
