"""A loss of your own: from what it does to a token to normalisation, metrics and the invariance test.

    # my_losses.py
    from grpo_verl_ext.verl_plugin.own_loss import token_loss

    @token_loss
    def reinforce(log_prob, old_log_prob, advantages, response_mask, config):
        return -advantages * log_prob

    export VERL_USE_EXTERNAL_MODULES=my_losses    # on every node; verl imports it in each process
    python3 -m verl.trainer.main_ppo … actor_rollout_ref.actor.policy_loss.loss_mode=reinforce
    grpo-verl-ext invariance --loss reinforce --loss-agg-mode token-mean

How tokens are averaged is what ``actor.loss_agg_mode`` says; each mode divides by a number of the whole
mini-batch, so that value and gradient do not depend on micro-batches or ranks.
"""

import functools
from typing import Any

from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY

from grpo_verl_ext import catalogue
from grpo_verl_ext.catalogue.record import MiniBatchStatistic, PerToken, TokenLoss
from grpo_verl_ext.verl_plugin.registries import function_of


def token_loss(per_token: PerToken | None = None, *, needs: MiniBatchStatistic | None = None) -> Any:
    """Register a loss of tokens with verl, under the function's name, for ``policy_loss.loss_mode``.

    It gets verl's rollout weights, where they are on, ``policy_loss.off_policy_mask_threshold``, and the
    metrics ``actor/ppo_kl``, ``actor/entropy_per_token``, ``actor/frac_zero_advantage`` and, with a budget,
    ``actor/frac_truncated``.

    Args:
        per_token: the loss; without it a decorator is returned.
        needs: a statistic of the whole mini-batch, which the loss gets as ``statistic``.

    What the function names of `record.INPUTS`, such as ``rollout_log_prob``, it gets by name, in a trainer
    mode of this package.
    """
    if per_token is None:
        return functools.partial(token_loss, needs=needs)
    loss = TokenLoss(per_token.__name__, per_token, needs=needs)
    function = function_of(loss)
    # verl would overwrite another package's loss of this name without a word. Two imports of the same source
    # have one owner.
    other = POLICY_LOSS_REGISTRY.get(loss.name, function)
    owner = f"{other.__module__}.{getattr(other, '__qualname__', type(other).__qualname__)}"
    if owner != f"{function.__module__}.{function.__qualname__}":
        raise ValueError(
            f"the policy loss '{loss.name}' is already registered by {owner}. Rename yours, or load only one "
            f"of the two packages: VERL_USE_EXTERNAL_PLUGINS=<comma-separated plugin names>."
        )
    POLICY_LOSS_REGISTRY[loss.name] = function
    catalogue.LOSSES[loss.name] = loss
    return per_token
