"""Put whole groups into each optimizer step, and tell the workers which rows are whose: in the trainer.

Only the order of the rows changes: a loss that ignores groups has the same value and gradient on the same
mini-batch as under verl's own trainer.
"""

import math
from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any

import torch
from verl import DataProto
from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils import tensordict_utils as tu
from verl.utils.seqlen_balancing import calculate_workload, log_seqlen_unbalance

from grpo_verl_ext import catalogue
from grpo_verl_ext.algorithms import ragged
from grpo_verl_ext.algorithms.groups import dense_group_ids, group_sum
from grpo_verl_ext.utils.console import say
from grpo_verl_ext.utils.keys import BYPASS, SECTION, setting
from grpo_verl_ext.verl_plugin import wire
from grpo_verl_ext.verl_plugin.batch.fields import data_parallel_size, nested, prompt_ids, put
from grpo_verl_ext.verl_plugin.batch.sessions import refuse_several_outputs
from grpo_verl_ext.verl_plugin.config import Options
from grpo_verl_ext.verl_plugin.mini_batch import plan as rows_plan
from grpo_verl_ext.verl_plugin.mini_batch.plan import Plan
from grpo_verl_ext.verl_plugin.wire import StatisticSource

_OF_UPDATE = f"{SECTION}.old_log_probs_from_update"
_SEEDS_OF_PART = 2**20
"""More than a part of a step has updates."""


class MiniBatchMixin(PPOTrainer):  # type: ignore[misc]  # verl ships no types
    """Put whole groups into each optimizer step, and pass the workers what a statistic of it takes."""

    _plan_of_batch: Plan
    _number_of: Mapping[str, int] = MappingProxyType({})
    """Key of a row of this rollout → its place before rows were put onto ranks."""
    _told_of_misfit = False

    def _setup(self) -> None:
        """Start verl's workers, then say where the statistic of the loss will come from."""
        super()._setup()
        if self._plan is not None:
            _tell(self._plan)

    @cached_property
    def _plan(self) -> Plan | None:
        """The plan of this training; None if no update needs one."""
        loss = catalogue.loss_of(self.config)
        if loss is None or loss.needs is None or not rows_plan.policy_moves(self.config):
            return None
        ranks = data_parallel_size(self.actor_rollout_wg)
        return rows_plan.Cut.from_config(self.config, ranks, of_prompts=loss.needs.of_prompts).plan()

    def _balance_batch(
        self, batch: Any, metrics: dict[str, Any], logging_prefix: str = "global_seqlen", **_: object
    ) -> Any:
        """Order the rows so that verl's cuts keep groups whole and ranks equally busy."""
        for record in (catalogue.estimator_of(self.config), catalogue.loss_of(self.config)):
            refuse_several_outputs(record, batch.keys)
        if Options.from_config(self.config.algorithm).seed_requests is not None:
            # verl's prompt ids are random, and it orders rows by when their responses were finished. This
            # order is by the prompt's index in the data set and its tokens, then by session and output.
            rows = nested(batch, "index", "prompts")
            index = [str(number) for number in tu.get(rows, "index")]
            prompts = [tokens.tolist() for tokens in rows["prompts"].unbind()]
            outputs = [tuple(map(int, key.rsplit("_", 2)[1:])) for key in batch.keys]
            batch.reorder(sorted(range(len(batch)), key=lambda row: (index[row], prompts[row], outputs[row])))
        self._number_of = {key: number for number, key in enumerate(batch.keys)}
        actor_rollout, dp_size = self.config.actor_rollout_ref, data_parallel_size(self.actor_rollout_wg)
        capacity = int(actor_rollout.actor.ppo_mini_batch_size * actor_rollout.rollout.n)
        plan = self._plan or Plan(StatisticSource.FORWARD_PASS, capacity, "")
        largest_group = max(Counter(prompt_ids(batch)).values())
        if misfit := plan.misfit(largest_group, max(tag["seq_len"] for tag in batch.tags)):
            plan = Plan(StatisticSource.FORWARD_PASS, capacity, misfit)
            if not self._told_of_misfit:
                _tell(plan)
            self._told_of_misfit = True
        self._plan_of_batch, n = plan, actor_rollout.rollout.n
        shares = Options.from_config(self.config.algorithm).shared_prompts and not capacity % (n * dp_size)
        if shares and plan.source is StatisticSource.FORWARD_PASS and dp_size > 1 and largest_group <= n:
            plan = Plan(StatisticSource.MICRO_BATCH, n, "")  # rows share their prompt on one rank
        units = plan.whole_groups(prompt_ids(batch))
        multiple = math.lcm(capacity, self._get_required_batch_multiple(dp_size))
        size = math.ceil(len(units) * plan.unit / multiple) * multiple
        batch = upsample_batch_to_divisible_size(batch, size, self.tokenizer.eos_token_id)
        lengths = torch.tensor([tag["seq_len"] for tag in batch.tags], dtype=torch.int64)
        workload = calculate_workload(lengths).tolist()
        ranks = plan.over_ranks(units, workload, dp_size, capacity)
        batch.reorder([row for rank in ranks for row in rank])
        metrics.update(log_seqlen_unbalance(lengths.tolist(), ranks, logging_prefix))
        return batch

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Pass the rows' keys to the estimator; store what tells rows and prompts apart for a statistic."""
        with wire.passing(row_keys=batch.keys):
            batch = super()._compute_advantage(batch, metrics)
        loss = catalogue.loss_of(self.config)
        if loss is None or loss.needs is None:
            return batch
        mask = nested(batch, "response_mask")["response_mask"]
        group = dense_group_ids(prompt_ids(batch))
        member = ragged.row_lengths(mask.values(), mask.offsets()) > 0
        number_of = dict(self._number_of)
        numbers = [number_of.setdefault(key, len(number_of)) for key in batch.keys]  # padding comes last
        return put(
            batch,
            {
                wire.Field.ROW_NUMBER: torch.tensor(numbers),
                wire.Field.GROUP_INDEX: group,
                wire.Field.GROUP_SIZE: group_sum(member.to(torch.int64), group),
            },
        )

    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Pass the source of the statistic, and whether ``old_log_probs`` are the current policy's.

        verl's actor computes them just before it, for responses of any age, with two exceptions: in bypass
        mode they are the rollout's, and later parts of a step use the policy at the start of the step.
        """
        plan = self._plan_of_batch
        batch.extra_info[wire.Field.STATISTIC_SOURCE] = plan.source.value
        part = self.global_steps * self.parameter_sync_step + self.local_trigger_step
        batch.extra_info[wire.Field.STATISTIC_SEED] = _SEEDS_OF_PART * part
        if plan.longest is not None:
            batch.extra_info["force_group_size"] = plan.unit
        is_first = self.local_trigger_step == 0
        batch.extra_info[wire.Field.OLD_IS_CURRENT] = is_first and not setting(self.config, BYPASS)
        return super()._update_actor(batch, metrics)


class OldLogProbsMixin(PPOTrainer):  # type: ignore[misc]
    """Take the old log-probs of the first update's rows from that update, in the place of a pass before it.

    Until then they are the rollout's: a first update reads none. Metrics of them follow the update.
    """

    def _compute_old_log_prob(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Compute those of later mini-batches alone; verl cuts each rank's share into them in order."""
        if not setting(self.config, _OF_UPDATE):
            return super()._compute_old_log_prob(batch, metrics)
        actor, ranks = self.config.actor_rollout_ref, data_parallel_size(self.actor_rollout_wg)
        first, share = actor.actor.ppo_mini_batch_size * actor.rollout.n // ranks, len(batch) // ranks
        if later := [key for row, key in enumerate(batch.keys) if row % share >= first]:
            rest = batch.select_keys(later)
            rest.extra_info = {**batch.extra_info, wire.Field.KEEPS: True}
            super()._compute_old_log_prob(rest, {})
        rows = batch.select_keys([key for row, key in enumerate(batch.keys) if row % share < first])
        put(rows, {wire.Field.OLD_LOG_PROBS: nested(rows, "rollout_log_probs")["rollout_log_probs"]})
        return batch

    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Store what the first update's pass gave, and let verl derive its metrics as from a pass before."""
        if not setting(self.config, _OF_UPDATE):
            return super()._update_actor(batch, metrics)
        batch.extra_info[wire.Field.OLD_OF_UPDATE] = True
        batch = super()._update_actor(batch, metrics)
        batch.extra_info = {wire.Field.KEPT: True}
        super()._compute_old_log_prob(batch, metrics)
        if (correction := self.config.algorithm.get("rollout_correction")) is not None:
            rows = nested(batch, wire.Field.OLD_LOG_PROBS, "rollout_log_probs", "response_mask")
            padded = DataProto(batch=rows.to_padded_tensor())
            metrics.update(compute_rollout_correction_and_add_to_batch(padded, correction)[1])
        return batch


def _tell(plan: Plan) -> None:
    is_before = plan.source is StatisticSource.FORWARD_PASS
    where = "a forward pass before each update" if is_before else "the update itself"
    say(f"what the loss needs of other responses comes from {where}: {plan.reason}")
