"""Keep the responses of a prompt in one optimizer step: the part in the trainer.

Only the order of the rows changes: a loss that ignores groups has the same value and gradient on the same
mini-batch as under verl's own trainer.
"""

import math
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils.seqlen_balancing import calculate_workload, log_seqlen_unbalance

from grpo_verl_ext.algorithms import gvpo, ragged
from grpo_verl_ext.algorithms.groups import dense_group_ids, group_sum
from grpo_verl_ext.verl_plugin import context
from grpo_verl_ext.verl_plugin.config import Options
from grpo_verl_ext.verl_plugin.context import KEYS
from grpo_verl_ext.verl_plugin.trainer.group_packing import balanced_over_ranks, filled, whole_groups
from grpo_verl_ext.verl_plugin.trainer.kv_batch import refuse_several_outputs
from grpo_verl_ext.verl_plugin.trainer.rollout_batch import (
    data_parallel_size,
    in_fixed_order,
    like,
    nested,
    prompt_ids,
    put,
)
from grpo_verl_ext.verl_plugin.workers.group_drift import (
    ANCHOR,
    NUM_GROUPS,
    OLD,
    OLD_IS_CURRENT,
    REF,
)

GROUP_LOSSES = ("gvpo",)
"""Losses that need the group of every response."""

FOR_TARGETS = (OLD, REF, "advantages")
"""Fields from which the targets for the anchor π_ref are computed."""


class GroupBatchingMixin(PPOTrainer):  # type: ignore[misc]  # verl ships no types
    """Put whole groups into each optimizer step and pass their indices and sizes to the workers."""

    def _balance_batch(
        self, batch: Any, metrics: dict[str, Any], logging_prefix: str = "global_seqlen", **_: object
    ) -> Any:
        """Order the rows so that verl's cuts keep groups whole and ranks equally busy.

        With ``seed_requests`` two runs with the same responses have the same mini-batches.
        """
        refuse_several_outputs(self.config.algorithm.adv_estimator, batch.keys)
        if Options.from_config(self.config.algorithm).seed_requests is not None:
            batch.reorder(in_fixed_order(batch))
        dp_size = data_parallel_size(self.actor_rollout_wg)
        capacity = (
            self.config.actor_rollout_ref.actor.ppo_mini_batch_size * self.config.actor_rollout_ref.rollout.n
        )
        mini_batches = whole_groups(prompt_ids(batch), capacity)
        responses = len(batch)
        unit = math.lcm(capacity, self._get_required_batch_multiple(dp_size))
        size = math.ceil(len(mini_batches) * capacity / unit) * unit
        batch = upsample_batch_to_divisible_size(batch, size, self.tokenizer.eos_token_id)
        mini_batches = filled(mini_batches, range(responses, size), capacity)

        lengths = torch.tensor([tag["seq_len"] for tag in batch.tags], dtype=torch.int64)
        ranks = balanced_over_ranks(mini_batches, calculate_workload(lengths).tolist(), dp_size)
        batch.reorder([row for rank in ranks for row in rank])
        metrics.update(log_seqlen_unbalance(lengths.tolist(), ranks, logging_prefix))
        return batch

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Pass the rows' keys to the estimator; store indices and sizes of groups for a group loss.

        Like the loss's estimator, a size counts the responses that still have tokens.
        """
        with KEYS.set(batch.keys):
            batch = super()._compute_advantage(batch, metrics)
        if self.config.actor_rollout_ref.actor.policy_loss.loss_mode not in GROUP_LOSSES:
            return batch
        anchored = Options.from_config(self.config.algorithm).gvpo_anchor == "ref"
        rows = nested(batch, "response_mask", *(FOR_TARGETS if anchored else ()))
        group = dense_group_ids(prompt_ids(batch))
        mask = rows["response_mask"]
        member = ragged.has_tokens(mask.values(), mask.offsets())
        fields = {
            context.GROUP_INDEX: group,
            context.GROUP_SIZE: group_sum(member.to(torch.int64), group),
        }
        if anchored:
            fields["advantages"] = fields["returns"] = _anchored_at_reference(
                rows, group, member, self.config.actor_rollout_ref.actor.policy_loss.gvpo_beta
            )
        return put(batch, fields)

    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Pass the workers whether ``old_log_probs`` are those of the policy before this update.

        verl's actor computes them just before it, for responses of any age, with two exceptions: in bypass
        mode they are the rollout's, and later parts of a step use the policy at the start of the step.
        """
        rollout_correction = self.config.algorithm.get("rollout_correction") or {}
        anchor = Options.from_config(self.config.algorithm).gvpo_anchor
        batch.extra_info[ANCHOR] = REF if anchor == "ref" else OLD
        batch.extra_info[NUM_GROUPS] = len(set(prompt_ids(batch)))
        batch.extra_info[OLD_IS_CURRENT] = self.local_trigger_step == 0 and not rollout_correction.get(
            "bypass_mode", False
        )
        return super()._update_actor(batch, metrics)


def _anchored_at_reference(rows: TensorDict, group: Tensor, member: Tensor, beta: float) -> Tensor:
    """Turn the estimator's R − R̄ into GVPO's targets for the anchor π_ref, ragged as in verl's batch."""
    old_log_prob, ref_log_prob, advantages = (rows[name].values() for name in FOR_TARGETS)
    mask, offsets = rows["response_mask"].values(), rows["response_mask"].offsets()
    log_ratio = ragged.sequence_log_ratio(old_log_prob, ref_log_prob, mask, offsets)
    centred_rewards = ragged.per_response(advantages, mask, offsets).to(log_ratio.dtype)
    targets = gvpo.anchored(centred_rewards, log_ratio, group, member, beta)
    return like(rows["response_mask"], ragged.on_tokens(targets, mask, offsets))
