"""Keep the responses of a prompt in one optimizer step: the part in the trainer.

Only the order of the rows changes: a loss that ignores groups has the same value and gradient on the same
mini-batch as under verl's own trainer.
"""

import math
import sys
from collections import Counter
from functools import cached_property
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils.seqlen_balancing import calculate_workload, log_seqlen_unbalance

from grpo_verl_ext import catalogue
from grpo_verl_ext.algorithms import gvpo, ragged
from grpo_verl_ext.algorithms.groups import dense_group_ids, group_sum
from grpo_verl_ext.verl_plugin import wire
from grpo_verl_ext.verl_plugin.batch.fields import (
    data_parallel_size,
    in_fixed_order,
    like,
    nested,
    prompt_ids,
    put,
)
from grpo_verl_ext.verl_plugin.batch.sessions import refuse_several_outputs
from grpo_verl_ext.verl_plugin.config import Options
from grpo_verl_ext.verl_plugin.gvpo import plan as group_plan
from grpo_verl_ext.verl_plugin.gvpo.packing import (
    balanced_over_ranks,
    blocks_over_ranks,
    filled,
    whole_groups,
)
from grpo_verl_ext.verl_plugin.wire import ROW_KEYS, DriftSource

_FOR_TARGETS = (wire.Field.OLD_LOG_PROBS, wire.Field.REF_LOG_PROB, "advantages")
"""Fields from which the targets for the anchor π_ref are computed."""


class GroupBatchingMixin(PPOTrainer):  # type: ignore[misc]  # verl ships no types
    """Put whole groups into each optimizer step and pass their indices and sizes to the workers."""

    _plan_of_batch: group_plan.Plan
    _told_of_misfit = False

    def _setup(self) -> None:
        """Start verl's workers, then say where GVPO's drift will come from."""
        super()._setup()
        if self._needs_drift:
            _tell(self._plan)

    @property
    def _has_group_loss(self) -> bool:
        return catalogue.has_groups(self.config)

    @property
    def _needs_drift(self) -> bool:
        return self._has_group_loss and group_plan.policy_moves(self.config)

    @property
    def _capacity(self) -> int:
        """Rows of a mini-batch on all ranks."""
        actor_rollout = self.config.actor_rollout_ref
        return int(actor_rollout.actor.ppo_mini_batch_size * actor_rollout.rollout.n)

    @cached_property
    def _plan(self) -> group_plan.Plan:
        if not self._needs_drift:
            return group_plan.by_forward_pass(self._capacity, "no update needs it")
        return group_plan.choose(
            group_plan.Cut.from_config(self.config, data_parallel_size(self.actor_rollout_wg))
        )

    def _balance_batch(
        self, batch: Any, metrics: dict[str, Any], logging_prefix: str = "global_seqlen", **_: object
    ) -> Any:
        """Order the rows so that verl's cuts keep groups whole and ranks equally busy.

        With ``seed_requests`` two runs with the same responses have the same mini-batches.
        """
        refuse_several_outputs(catalogue.estimator_of(self.config), batch.keys)
        if Options.of_training(self.config.algorithm).seed_requests is not None:
            batch.reorder(in_fixed_order(batch))
        dp_size, capacity = data_parallel_size(self.actor_rollout_wg), self._capacity
        plan = self._plan_of_batch = self._plan_for(batch)
        units = whole_groups(prompt_ids(batch), plan.unit)
        responses = len(batch)
        multiple = math.lcm(capacity, self._get_required_batch_multiple(dp_size))
        size = math.ceil(len(units) * plan.unit / multiple) * multiple
        batch = upsample_batch_to_divisible_size(batch, size, self.tokenizer.eos_token_id)
        units = filled(units, range(responses, size), plan.unit)

        lengths = torch.tensor([tag["seq_len"] for tag in batch.tags], dtype=torch.int64)
        workload = calculate_workload(lengths).tolist()
        if plan.source is DriftSource.MICRO_BATCH:
            ranks = blocks_over_ranks(
                units, workload, dp_size, capacity // plan.unit, plan.units_per_micro_batch
            )
        else:
            ranks = balanced_over_ranks(units, workload, dp_size)
        batch.reorder([row for rank in ranks for row in rank])
        metrics.update(log_seqlen_unbalance(lengths.tolist(), ranks, logging_prefix))
        return batch

    def _plan_for(self, batch: Any) -> group_plan.Plan:
        """Return the plan of this training, or a forward pass where the batch does not fit it."""
        largest_group = max(Counter(prompt_ids(batch)).values())
        misfit = self._plan.misfit(largest_group, max(tag["seq_len"] for tag in batch.tags))
        if not misfit:
            return self._plan
        plan = group_plan.by_forward_pass(self._capacity, misfit)
        if not self._told_of_misfit:
            self._told_of_misfit = True
            _tell(plan)
        return plan

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Pass the rows' keys to the estimator; store indices and sizes of groups for a group loss.

        Like the loss's estimator, a size counts the responses that still have tokens.
        """
        with ROW_KEYS.set(batch.keys):
            batch = super()._compute_advantage(batch, metrics)
        if not self._has_group_loss:
            return batch
        anchored = Options.of_training(self.config.algorithm).gvpo_anchor == "ref"
        rows = nested(batch, "response_mask", *(_FOR_TARGETS if anchored else ()))
        group = dense_group_ids(prompt_ids(batch))
        mask = rows["response_mask"]
        member = ragged.row_has_tokens(mask.values(), mask.offsets())
        fields = {
            wire.Field.GROUP_INDEX: group,
            wire.Field.GROUP_SIZE: group_sum(member.to(torch.int64), group),
        }
        if anchored:
            fields["advantages"] = fields["returns"] = _anchored_at_reference(
                rows, group, member, self.config.actor_rollout_ref.actor.policy_loss.gvpo_beta
            )
        return put(batch, fields)

    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Pass the workers the source of the drift, and whether ``old_log_probs`` are the current policy's.

        verl's actor computes them just before it, for responses of any age, with two exceptions: in bypass
        mode they are the rollout's, and later parts of a step use the policy at the start of the step.
        """
        rollout_correction = self.config.algorithm.get("rollout_correction") or {}
        anchor = Options.of_training(self.config.algorithm).gvpo_anchor
        batch.extra_info[wire.Field.ANCHOR] = (
            wire.Field.REF_LOG_PROB if anchor == "ref" else wire.Field.OLD_LOG_PROBS
        )
        plan = self._plan_of_batch
        batch.extra_info[wire.Field.DRIFT_SOURCE] = plan.source.value
        if plan.is_dynamic:
            batch.extra_info["force_group_size"] = plan.unit
        batch.extra_info[wire.Field.NUM_GROUPS] = len(set(prompt_ids(batch)))
        batch.extra_info[wire.Field.OLD_IS_CURRENT] = (
            self.local_trigger_step == 0 and not rollout_correction.get("bypass_mode", False)
        )
        return super()._update_actor(batch, metrics)


def _tell(plan: group_plan.Plan) -> None:
    where = (
        "a forward pass before each update"
        if plan.source is DriftSource.FORWARD_PASS
        else "the update itself"
    )
    print(
        f"grpo_verl_ext: GVPO takes the mean log-ratio of a prompt from {where}: {plan.reason}",
        file=sys.stderr,
        flush=True,
    )


def _anchored_at_reference(rows: TensorDict, group: Tensor, member: Tensor, beta: float) -> Tensor:
    """Turn the estimator's R − R̄ into GVPO's targets for the anchor π_ref, ragged as in verl's batch."""
    old_log_prob, ref_log_prob, advantages = (rows[name].values() for name in _FOR_TARGETS)
    mask, offsets = rows["response_mask"].values(), rows["response_mask"].offsets()
    log_ratio = ragged.row_log_ratio(old_log_prob, ref_log_prob, mask, offsets)
    centred_rewards = ragged.row_values(advantages, mask, offsets).to(log_ratio.dtype)
    targets = gvpo.anchored(centred_rewards, log_ratio, group, member, beta)
    return like(rows["response_mask"], ragged.on_row_tokens(targets, mask, offsets))
