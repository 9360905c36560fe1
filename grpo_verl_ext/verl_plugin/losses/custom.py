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
mini-batch, so that value and gradient do not depend on micro-batches or ranks. The package's own losses of
tokens are made by the same `token_loss_function`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, overload

from torch import Tensor
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY

from grpo_verl_ext import catalogue
from grpo_verl_ext.catalogue import evaluation
from grpo_verl_ext.catalogue.record import Loss, MiniBatchStatistic, PerToken, TokenLoss
from grpo_verl_ext.utils.errors import SettingError
from grpo_verl_ext.utils.keys import MODE
from grpo_verl_ext.verl_plugin import usage
from grpo_verl_ext.verl_plugin.config import TRAINER_MODES
from grpo_verl_ext.verl_plugin.wire import STATISTIC

if TYPE_CHECKING:
    from verl.workers.config import ActorConfig

PolicyLoss = Callable[..., tuple[Tensor, dict[str, Tensor]]]
"""A function that verl calls for each micro-batch: (loss (), metrics)."""


class NameTakenError(ValueError):
    """Another package has already registered a function under one of our names."""


@overload
def token_loss(per_token: PerToken) -> PerToken: ...
@overload
def token_loss(*, needs: MiniBatchStatistic) -> Callable[[PerToken], PerToken]: ...


def token_loss(per_token: PerToken | None = None, *, needs: MiniBatchStatistic | None = None) -> Any:
    """Register a loss of tokens with verl, under the function's name, for ``policy_loss.loss_mode``.

    It gets verl's rollout weights, where they are on, ``policy_loss.off_policy_mask_threshold``, and the
    metrics ``actor/ppo_kl``, ``actor/entropy_per_token``, ``actor/frac_zero_advantage`` and, with a budget,
    ``actor/frac_truncated``.

    Args:
        per_token: the loss; without it a decorator is returned.
        needs: a statistic of the whole mini-batch, which the loss gets as its last argument, (B, T). It needs
            a trainer mode of this package.

    Raises:
        NameTakenError: another package's loss has that name.
    """
    if per_token is None:
        return functools.partial(token_loss, needs=needs)
    loss = TokenLoss(per_token.__name__, per_token, needs=needs)
    claim(POLICY_LOSS_REGISTRY, {loss.name: token_loss_function(loss)}, "policy loss")
    catalogue.LOSSES[loss.name] = loss
    return per_token


def token_loss_function(loss: TokenLoss) -> PolicyLoss:
    """Return a loss of tokens with verl's signature, averaged over the mini-batch, with our metrics."""

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
        tokens = evaluation.Tokens(log_prob, old_log_prob, advantages, response_mask)
        statistic = None if loss.needs is None else _statistic(loss, response_mask)
        return evaluation.token_loss(loss, tokens, config, statistic, rollout_is_weights)

    # `claim` tells owners by module and name: importing the same file twice is harmless.
    loss_fn.__module__ = loss.per_token.__module__
    loss_fn.__name__ = loss_fn.__qualname__ = loss.name
    loss_fn.__doc__ = loss.per_token.__doc__
    setattr(loss_fn, usage.RECORD, loss)
    return loss_fn


def _statistic(loss: TokenLoss, response_mask: Tensor) -> Tensor:
    """Return what the loss needs of the mini-batch, for the tokens at hand: (B, T).

    Raises:
        SettingError: no trainer mode of this package has measured it.
    """
    found = STATISTIC.get()
    if found is None:
        raise needs_our_trainer(loss, "its statistic of the mini-batch", "measure")
    return found.to(response_mask.device)


def needs_our_trainer(loss: Loss, what: str, verb: str) -> SettingError:
    """Return the error for a loss that was not given what only a trainer mode of this package gives it."""
    return SettingError(
        MODE,
        None,
        seen=f"policy_loss.loss_mode={loss.name} was called without {what}, which verl's own trainers and "
        f"workers do not {verb}",
        valid=TRAINER_MODES,
        fix=f"python3 -m verl.trainer.main_ppo … trainer.use_v1=true {MODE}=grpo_ext_sync",
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
