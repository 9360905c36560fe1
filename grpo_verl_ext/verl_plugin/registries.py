"""The functions that verl calls for the estimators and losses of the catalogue, by their names.

Importing this module registers them with verl, and those of algorithms that are entered later.

verl's ``ppo_loss`` calls a loss for each micro-batch, with (B, T) tensors and ``config`` the ActorConfig,
whose ``global_batch_info`` has the counts of the whole mini-batch. Each loss averages its tokens itself, so
that value and gradient do not depend on the split into micro-batches and ranks (except bnpo, by definition).
A registered loss gets no ``ref_log_prob`` and an estimator no log-probs, so the KL to the reference is
verl's: ``actor/kl_loss`` with ``use_kl_loss``, ``actor/reward_kl_penalty`` with ``use_kl_in_reward``.
"""

from __future__ import annotations

from functools import partial, update_wrapper
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY

from grpo_verl_ext import catalogue
from grpo_verl_ext.algorithms.gvpo import GroupRows
from grpo_verl_ext.catalogue import Estimator, GroupLoss, Loss, TokenLoss, compute
from grpo_verl_ext.catalogue.averages import MiniBatch
from grpo_verl_ext.catalogue.requires import OUR_MODES
from grpo_verl_ext.utils.errors import SettingError
from grpo_verl_ext.utils.keys import MODE
from grpo_verl_ext.verl_plugin import estimators, usage
from grpo_verl_ext.verl_plugin.wire import PASSED

if TYPE_CHECKING:
    from verl.workers.config import ActorConfig


def _loss(
    loss: TokenLoss | GroupLoss,
    *,
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    config: ActorConfig,
    rollout_is_weights: Tensor | None = None,
    **_: object,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return a loss, averaged over the mini-batch, and its metrics."""
    tokens, passed = compute.Tokens(log_prob, old_log_prob, advantages, response_mask), PASSED.get()
    if isinstance(loss, GroupLoss):
        if passed.groups is not None:
            return _group_loss(loss, tokens, passed.groups, config)
        lacks = "the groups of its responses"
    elif passed.inputs.keys() >= {*loss.inputs}:
        inputs = {name: passed.inputs[name].to(response_mask.device) for name in loss.inputs}
        return compute.token_loss(loss, tokens, config, inputs, rollout_is_weights)
    else:
        lacks = " and ".join(name for name in loss.inputs if name not in passed.inputs)
    raise SettingError(
        MODE,
        None,
        seen=f"policy_loss.loss_mode={loss.name} was called without {lacks}, which verl's own trainers and "
        "workers do not pass to a loss",
        valid=OUR_MODES,
        fix=f"python3 -m verl.trainer.main_ppo … trainer.use_v1=true {MODE}=grpo_ext_sync",
    )


def _group_loss(
    loss: GroupLoss, tokens: compute.Tokens, groups: GroupRows, config: ActorConfig
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return GVPO's loss D/P Σ_i ½ d_i² / (k_i − 1): P = ``ppo_mini_batch_size`` prompts, D ranks.

    ``advantages`` are the targets Ã of the estimator of the same name. ``rollout_is_weights`` is not read:
    the minimiser is the same for every sampling distribution (Theorem 2). ``policy_loss.gvpo_terms`` replaces
    ½ d_i² / (k_i − 1) by a loss of the paper's ablation, `gvpo_terms.ABLATED_LOSSES`.

    The worker of a trainer mode of this package passes the groups, with the drift Δ̄ of each prompt; value
    and gradient are then exact at every update. Without them the loss is refused: verl's own trainers
    leave a group incomplete when a session fails, and spread groups over updates.
    """
    from grpo_verl_ext.verl_plugin.loss_config import options_of

    found = compute.group_loss(options_of(loss, config.policy_loss), tokens, groups, config)
    if (sums := PASSED.get().update_sums) is not None:
        mini_batch = MiniBatch.from_config(config)
        sums.weights.index_add_(0, groups.index, found.weights.to(sums.weights.dtype))
        parts = [mini_batch.mean(each.detach()) for each in found.moments[3:]]
        sums.fit.add_(torch.stack(parts))
    return found.loss, found.metrics


class _Yielding(partial[tuple[Tensor, Tensor]]):
    """An estimator whose name another module may register later, as verl lets it do with a loss's."""

    def __ne__(self, other: object) -> bool:
        """Return False, for verl refuses a name where the function that has it is unequal to the new one."""
        return False


def function_of(record: Estimator | Loss) -> Any:
    """Return the function of verl's signature for an estimator or a loss, which has it as `usage.RECORD`."""
    if isinstance(record, Estimator):
        made: Any = update_wrapper(_Yielding(estimators.estimate, record), estimators.estimate)
        made.__doc__ = record.doc
    else:
        # `own_loss` tells owners by module and name: importing the same file twice is harmless.
        assert isinstance(record, TokenLoss | GroupLoss)
        origin = record.per_token if isinstance(record, TokenLoss) else _group_loss
        made = update_wrapper(partial(_loss, record), origin)
    made.__name__ = made.__qualname__ = record.name
    setattr(made, usage.RECORD, record)
    return made


catalogue.enter_foreign()
# Unless another package has the name.
catalogue.listen(
    lambda record: (
        ADV_ESTIMATOR_REGISTRY if isinstance(record, Estimator) else POLICY_LOSS_REGISTRY
    ).setdefault(record.name, function_of(record))
)
