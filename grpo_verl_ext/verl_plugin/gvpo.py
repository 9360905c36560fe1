"""GVPO's parts in verl: of the actor worker, which gives the loss its groups, and of the trainer."""

from typing import Any

import torch
import torch.distributed as dist
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_id
from verl.utils.metric import AggregationType

from grpo_verl_ext import catalogue
from grpo_verl_ext.algorithms import gvpo, gvpo_terms, ragged
from grpo_verl_ext.algorithms.advantages import per_response
from grpo_verl_ext.catalogue.compute import SUMMED_METRICS
from grpo_verl_ext.catalogue.gvpo import alpha_of
from grpo_verl_ext.verl_plugin import wire
from grpo_verl_ext.verl_plugin.batch.fields import like, nested, prompt_ids, put
from grpo_verl_ext.verl_plugin.config import Options
from grpo_verl_ext.verl_plugin.estimators import anchored_targets
from grpo_verl_ext.verl_plugin.mini_batch.worker import MiniBatchTrainingWorker


class GroupTrainingWorker(MiniBatchTrainingWorker):
    """Training worker that gives GVPO's loss the groups and their drift, if the batch has them."""

    def train_batch(self, data: TensorDict) -> TensorDict:
        """Do one update, with the metrics of whole prompts."""
        if not (isinstance(self._loss, catalogue.GroupLoss) and self._measures(data)):
            return super().train_batch(data)
        device, num_groups = get_device_id(), tu.get(data, key=wire.Field.NUM_GROUPS)
        mask, index = data["response_mask"], data[wire.Field.GROUP_INDEX]
        rows, size = (mask.values(), mask.offsets()), data[wire.Field.GROUP_SIZE]
        member = (lengths := ragged.row_lengths(*rows)) > 0
        weight = gvpo.length_weight(lengths, alpha_of(self._config.policy_loss))
        anchor, deviations = tu.get(data, key=wire.Field.ANCHOR), {}
        # f_i log π(y_i) of this rank's rows minus their prompt's mean, 0 without tokens
        for field in dict.fromkeys((wire.Field.OLD_LOG_PROBS, anchor)):
            log_prob = data[field]
            log_prob = ragged.row_sums(log_prob.values(), *rows) if log_prob.is_nested else log_prob
            log_prob = weight * torch.where(member, log_prob, 0)
            of_groups = gvpo.drift_sums(log_prob, index, member, num_groups).to(device)
            dist.all_reduce(of_groups, group=self.engine.get_data_parallel_group())
            mean = gvpo.mean_drift(of_groups.to(index.device), index, member, size)
            deviations[field] = log_prob - mean
        data[wire.Field.OLD_DEVIATION] = deviations[wire.Field.OLD_LOG_PROBS]
        data[wire.Field.ANCHOR_DEVIATION] = deviations[anchor]
        sums = wire.UpdateSums(
            weights=torch.zeros(num_groups, device=device),
            fit=torch.zeros(3, dtype=torch.float64, device=device),
        )
        with wire.passing(update_sums=sums):
            output = super().train_batch(data)
        for own in (sums.weights, sums.fit):
            dist.all_reduce(own, group=self.engine.get_data_parallel_group())
        if output is not None:
            metrics = tu.get(output, key="metrics")
            metrics["actor/gvpo_weight_sum"] = sums.weights.abs().max().item()
            slope, metrics["actor/gvpo_fit_r2"] = gvpo_terms.implicit_reward_fit(*sums.fit.tolist())
            metrics["actor/gvpo_fit_slope"] = slope
            if self._update <= self._first_epoch:
                metrics["actor/gvpo_fit_slope_first_epoch"] = slope
        return output

    def _called(self, loss_fn: Any, data: TensorDict, model_output: Any = None, **more: Any) -> Any:
        """Call the loss with the groups of its rows."""
        if model_output is None or not (isinstance(self._loss, catalogue.GroupLoss) and self._measures(data)):
            return super()._called(loss_fn, data=data, model_output=model_output, **more)
        mask = torch.nested.to_padded_tensor(data["response_mask"], 0).bool()
        groups = gvpo.GroupRows(
            index=data[wire.Field.GROUP_INDEX],
            size=data[wire.Field.GROUP_SIZE],
            drift=per_response(self._statistic_of(data, model_output), mask),
            old_deviation=data[wire.Field.OLD_DEVIATION],
            anchor_deviation=data[wire.Field.ANCHOR_DEVIATION],
            old_is_current=self._old_is_current,
        )
        with wire.passing(groups=groups):
            loss, metrics = loss_fn(model_output=model_output, data=data, **more)
        # verl marks all metrics of a registered loss as means over micro-batches; these are parts of a sum.
        for name in metrics.keys() & set(SUMMED_METRICS):
            metrics[name].aggregation = AggregationType.SUM
        return loss, metrics


class GvpoMixin:
    """Give GVPO's loss targets for its anchor, and the workers the anchor's name."""

    config: Any

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        batch = super()._compute_advantage(batch, metrics)  # type: ignore[misc]  # verl's trainer is next
        anchor = Options.from_config(self.config.algorithm).anchor_field
        if catalogue.has_groups(self.config) and anchor != wire.Field.OLD_LOG_PROBS:
            rows = nested(batch, "response_mask", wire.Field.OLD_LOG_PROBS, anchor, "advantages")
            policy_loss = self.config.actor_rollout_ref.actor.policy_loss
            flat = anchored_targets(rows, prompt_ids(batch), anchor, policy_loss)
            targets = like(rows["response_mask"], flat)
            batch = put(batch, {"advantages": targets, "returns": targets})
        batch.extra_info.update(
            {wire.Field.ANCHOR: anchor, wire.Field.NUM_GROUPS: len(set(prompt_ids(batch)))}
        )
        return batch
