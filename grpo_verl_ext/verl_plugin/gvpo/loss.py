"""GVPO as a loss registered with verl: a squared error per response, `algorithms.gvpo.squared_error`.

In a trainer mode of this package (``trainer.v1.trainer_mode=grpo_ext_sync`` etc.) the worker passes the loss
the size of each response's group and a function for its drift Δ̄; value and gradient are then exact at every
update. Without them the loss raises: verl's own trainers leave a group incomplete when a session fails, and
spread groups over updates.

**Low precision.** ``old_log_probs`` come from a separate forward pass with other micro-batches, hence other
rounding: in bf16 some hundredths of a nat per token, which add up over a response to a spurious Δ. Where the
worker knows that the policy has not moved, the current log-probs, detached, serve as the old ones: Δ is 0 in
value, and its gradient is unchanged. With anchor ``ref`` the targets keep the log-ratio of ``old_log_probs``
to the reference, both from passes without gradient, so that d_i = β Δ_i − Ã_i holds and its only error is the
rounding of that log-ratio.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from grpo_verl_ext.catalogue import evaluation
from grpo_verl_ext.catalogue.averages import MiniBatch
from grpo_verl_ext.catalogue.record import GroupLoss
from grpo_verl_ext.verl_plugin.losses.custom import PolicyLoss, needs_our_trainer
from grpo_verl_ext.verl_plugin.wire import GROUPS, UPDATE_SUMS

if TYPE_CHECKING:
    from verl.workers.config import ActorConfig


def group_loss_function(group_loss: GroupLoss) -> PolicyLoss:
    """Return GVPO's loss D/P Σ_i ½ d_i² / (k_i − 1) for verl: P = ``ppo_mini_batch_size`` prompts, D ranks.

    ``advantages`` are the targets Ã of the estimator of the same name. ``rollout_is_weights`` is not read:
    the minimiser is the same for every sampling distribution (Theorem 2). ``policy_loss.gvpo_terms`` replaces
    ½ d_i² / (k_i − 1) by a loss of the paper's ablation, `gvpo_terms.ABLATED_LOSSES`.

    The loss raises SettingError where the groups of the responses are not set (`wire.GROUPS`).
    """

    def loss_fn(
        *,
        old_log_prob: Tensor,
        log_prob: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        config: "ActorConfig",
        **_: object,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        from grpo_verl_ext.verl_plugin.loss_config import options_of

        options, groups = options_of(group_loss, config.policy_loss), GROUPS.get()
        if groups is None:
            raise needs_our_trainer(group_loss, "the groups of its responses", "tell a loss")
        tokens = evaluation.Tokens(log_prob, old_log_prob, advantages, response_mask)
        found = evaluation.group_loss(options, tokens, groups, config)
        _add_to_update(groups.index, found, config)
        return found.loss, found.metrics

    loss_fn.__name__ = loss_fn.__qualname__ = group_loss.name
    loss_fn.__doc__ = group_loss_function.__doc__
    return loss_fn


def _add_to_update(index: Tensor, found: evaluation.GroupLossResult, config: "ActorConfig") -> None:
    """Add this micro-batch's part to the sums of the update, where a worker has made them."""
    sums = UPDATE_SUMS.get()
    if sums is not None:
        mini_batch = MiniBatch.from_config(config)
        sums.weights.index_add_(0, index, found.weights.to(sums.weights.dtype))
        parts = [evaluation.mini_batch_mean(each.detach(), mini_batch) for each in found.moments[3:]]
        sums.fit.add_(torch.stack(parts))
