"""verl's trainers with whole groups in each optimizer step: ``trainer.v1.trainer_mode=group_sync`` and kin.

The rows of a rollout batch reach the workers in another order, nothing else: a loss that does not look at
groups has the same value and gradient on the same mini-batch as under verl's own trainer.
"""

import math
from typing import Any, ClassVar

import ray
import torch
import transfer_queue as tq
from omegaconf import DictConfig, open_dict
from tensordict import TensorDict
from torch import Tensor
from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1.trainer_base import PPOTrainer, register_trainer
from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync
from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.seqlen_balancing import calculate_workload, log_seqlen_unbalance
from verl.workers.utils.padding import response_to_nested

from grpo_verl_ext.algorithms import gvpo, kl
from grpo_verl_ext.algorithms.advantages import has_tokens, of_response, on_tokens
from grpo_verl_ext.algorithms.aggregation import micro_batch_token_mean
from grpo_verl_ext.algorithms.groups import dense_group_ids, group_sum
from grpo_verl_ext.verl_plugin.groups import rows
from grpo_verl_ext.verl_plugin.groups.mini_batches import balanced_over_ranks, filled, whole_groups
from grpo_verl_ext.verl_plugin.groups.worker import (
    NUM_GROUPS,
    OLD_IS_CURRENT,
    GroupActorRolloutRefWorker,
    GroupDetachActorWorker,
)
from grpo_verl_ext.verl_plugin.settings import EstimatorSettings
from grpo_verl_ext.verl_plugin.step_rewards.collected import collected, step_metrics
from grpo_verl_ext.verl_plugin.step_rewards.laid_down import laid_down

GROUP_LOSSES = ("gvpo",)
"""Losses that need the group of every response."""


class KeepsGroups(PPOTrainer):  # type: ignore[misc]  # verl ships no types
    """What the group-aware trainers change in verl's; mixed in before one of verl's trainer classes."""

    verl_mode: ClassVar[str]
    worker_cls: ClassVar[type] = GroupActorRolloutRefWorker

    def __init__(self, config: DictConfig) -> None:
        # verl asks for its own modes by name: which replay buffer, which section of settings.
        with open_dict(config):
            config.trainer.v1.trainer_mode = self.verl_mode
        super().__init__(config)

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        for role in (Role.Actor, Role.ActorRollout, Role.ActorRolloutRef):
            if role in self.role_worker_mapping:
                self.role_worker_mapping[role] = ray.remote(self.worker_cls)

    def _balance_batch(
        self, batch: Any, metrics: dict[str, Any], logging_prefix: str = "global_seqlen", **_: object
    ) -> Any:
        """Order the rows so that verl's cuts keep groups whole and ranks equally busy."""
        dp_size = max(self._dp_ranks()) + 1
        capacity = (
            self.config.actor_rollout_ref.actor.ppo_mini_batch_size * self.config.actor_rollout_ref.rollout.n
        )
        mini_batches = whole_groups(_prompt_ids(batch), capacity)
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

    def _dp_ranks(self) -> list[int]:
        known: dict[str, list[int]] = self.actor_rollout_wg._dispatch_info
        if "actor" not in known:
            known["actor"] = self.actor_rollout_wg._query_dispatch_info("actor")
        return known["actor"]

    def _compute_ref_log_prob(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Add the KL to the reference before the update by all three estimators, means over tokens."""
        batch = super()._compute_ref_log_prob(batch, metrics)
        data = _padded(batch, "old_log_probs", "ref_log_prob", "response_mask")
        for name, estimator in {"k1": kl.k1, "k2": kl.k2, "k3": kl.k3}.items():
            values = estimator(data["old_log_probs"], data["ref_log_prob"], data["response_mask"])
            metrics[f"actor/ref_kl_{name}"] = micro_batch_token_mean(values, data["response_mask"]).item()
        return batch

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Show the estimator the steps of the responses, and tell a group loss the groups they belong to."""
        if self.config.algorithm.adv_estimator == "grpo_process":
            steps = collected(batch, _nested(batch, "extra_fields"))
            metrics.update(step_metrics(steps, responses=len(batch)))
            with laid_down(steps):
                batch = super()._compute_advantage(batch, metrics)
        else:
            batch = super()._compute_advantage(batch, metrics)
        if self.config.actor_rollout_ref.actor.policy_loss.loss_mode not in GROUP_LOSSES:
            return batch
        group = dense_group_ids(_prompt_ids(batch))
        member = has_tokens(_padded(batch, "response_mask")["response_mask"])
        fields = {rows.GROUP_INDEX: group, rows.GROUP_SIZE: group_sum(member.to(torch.int64), group)}
        settings = EstimatorSettings.from_config(self.config.algorithm)
        if settings.gvpo_anchor == "ref":
            fields["advantages"] = fields["returns"] = _anchored_at_reference(
                batch, group, member, settings.gvpo_beta
            )
        return _put(batch, fields)

    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Tell the workers when the drift of the groups is known to be zero."""
        rollout_correction = self.config.algorithm.get("rollout_correction") or {}
        batch.extra_info[NUM_GROUPS] = len(set(_prompt_ids(batch)))
        batch.extra_info[OLD_IS_CURRENT] = self.local_trigger_step == 0 and not rollout_correction.get(
            "bypass_mode", False
        )
        return super()._update_actor(batch, metrics)


@register_trainer("group_sync")
class GroupTrainerSync(KeepsGroups, PPOTrainerSync):  # type: ignore[misc]
    """verl's ``sync``: rollout and training take turns."""

    verl_mode = "sync"


@register_trainer("group_colocate_async")
class GroupTrainerColocateAsync(KeepsGroups, PPOTrainerColocateAsync):  # type: ignore[misc]
    """verl's ``colocate_async``: the same, and unfinished responses go on in the next step."""

    verl_mode = "colocate_async"


@register_trainer("group_separate_async")
class GroupTrainerSeparateAsync(KeepsGroups, PPOTrainerSeparateAsync):  # type: ignore[misc]
    """verl's ``separate_async``: the rollout has machines of its own."""

    verl_mode = "separate_async"
    worker_cls = GroupDetachActorWorker


def _prompt_ids(batch: Any) -> list[str]:
    """The prompt of each row; verl's keys are ``{uid}_{session}_{index}``."""
    return [key.rsplit("_", 2)[0] for key in batch.keys]


def _anchored_at_reference(batch: Any, group: Tensor, member: Tensor, beta: float) -> Tensor:
    """The estimator's R − R̄ turned into GVPO's targets for the anchor π_ref, nested as verl keeps them."""
    names = ("old_log_probs", "ref_log_prob", "response_mask", "advantages")
    nested = _nested(batch, *names)
    padded = nested.to_padded_tensor()
    old_log_prob, ref_log_prob, mask, advantages = (padded[name] for name in names)
    log_ratio = gvpo.sequence_log_ratio(old_log_prob, ref_log_prob, mask)
    centred_rewards = of_response(advantages, mask).to(log_ratio.dtype)
    targets = gvpo.anchored(centred_rewards, log_ratio, group, member, beta)
    on_response_tokens: Tensor = response_to_nested(on_tokens(targets, mask), nested["response_mask"])
    return on_response_tokens


def _nested(batch: Any, *fields: str) -> TensorDict:
    return tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=list(fields))


def _padded(batch: Any, *fields: str) -> TensorDict:
    return _nested(batch, *fields).to_padded_tensor()


def _put(batch: Any, fields: dict[str, Tensor]) -> Any:
    return tq.kv_batch_put(
        keys=batch.keys, partition_id=batch.partition_id, fields=TensorDict(fields, batch_size=len(batch))
    )
