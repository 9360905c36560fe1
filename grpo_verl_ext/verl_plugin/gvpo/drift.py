"""verl's actor worker, extended by the groups of responses: GVPO's drift Δ̄ of each prompt, and its metrics.

Δ̄ comes from the training pass where the trainer has put whole groups together (`wire.DriftSource`): from
the rows of a micro-batch, or from those of all ranks, which add up two numbers for each prompt of the rollout
batch, the log-ratios and the number of responses. Elsewhere a forward pass before the update measures it. An
update whose policy has not moved since the rollout needs neither, and the loss gets
`wire.GroupRows.old_is_current`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from tensordict import TensorDict
from torch import Tensor
from verl.experimental.separation.engine_workers import DetachActorWorker
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_id
from verl.utils.metric import AggregationType
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker
from verl.workers.utils.padding import response_from_nested

from grpo_verl_ext.algorithms import gvpo, gvpo_terms, ragged
from grpo_verl_ext.utils.errors import SettingError
from grpo_verl_ext.utils.keys import ACTOR
from grpo_verl_ext.verl_plugin import wire
from grpo_verl_ext.verl_plugin.config import DRIFT_ENGINES
from grpo_verl_ext.verl_plugin.gvpo.loss import SUMMED_METRICS
from grpo_verl_ext.verl_plugin.reference.worker import ReferenceSyncWorkerMixin

_LossFunction = Callable[..., tuple[Tensor, dict[str, Any]]]


class GroupTrainingWorker(TrainingWorker):  # type: ignore[misc]  # verl ships no types
    """Training worker that gives the loss the groups and their drift, if the batch has groups."""

    _old_is_current = False
    _left_of_first_epoch = 0
    """Updates to come on prompts that no update on this rollout has seen."""

    def set_loss_fn(self, loss_fn: _LossFunction) -> None:
        """Wrap verl's loss function, so that the loss can read `wire.GROUPS`."""
        super().set_loss_fn(partial(self._with_groups, loss_fn))

    def train_mini_batch(self, data: TensorDict) -> TensorDict:
        """Do all updates on the batch of one rollout; at the first, the policy may be that of the rollout."""
        self._old_is_current = tu.pop(data, key=wire.Field.OLD_IS_CURRENT, default=False)
        self._left_of_first_epoch = self._updates_of_an_epoch(data)
        return super().train_mini_batch(data)

    def _updates_of_an_epoch(self, data: TensorDict) -> int:
        number = tu.get(data, key="num_mini_batch", default=None)
        if number is not None:
            return int(number)
        rows = data.shape[0] * self.engine.get_data_parallel_size()
        return int(rows // tu.get(data, key="mini_batch_size"))

    def train_batch(self, data: TensorDict) -> TensorDict:
        """Do one update: the drift, where the update itself does not give it, verl's update, the metrics."""
        if wire.Field.GROUP_INDEX not in data.keys():  # noqa: SIM118  # iterating a TensorDict yields rows
            return super().train_batch(data)
        if _source(data) is wire.DriftSource.FORWARD_PASS and not self._old_is_current:
            data[wire.Field.GROUP_DRIFT] = self._mean(data, *self._log_ratio(data), over_ranks=True)
        old, anchor = self._deviation(data, wire.Field.OLD_LOG_PROBS), tu.get(data, key=wire.Field.ANCHOR)
        data[wire.Field.OLD_DEVIATION] = old
        data[wire.Field.ANCHOR_DEVIATION] = (
            old if anchor == wire.Field.OLD_LOG_PROBS else self._deviation(data, anchor)
        )
        device = get_device_id()
        sums = wire.UpdateSums(
            weights=torch.zeros(tu.get(data, key=wire.Field.NUM_GROUPS), device=device),
            fit=torch.zeros(3, dtype=torch.float64, device=device),
        )
        with wire.UPDATE_SUMS.set(sums):
            output = super().train_batch(data)
        self._old_is_current = False
        self._add_over_ranks(sums.weights)
        self._add_over_ranks(sums.fit)
        if output is not None:
            metrics = tu.get(output, key="metrics")
            metrics["actor/gvpo_weight_sum"] = sums.weights.abs().max().item()
            slope, metrics["actor/gvpo_fit_r2"] = gvpo_terms.implicit_reward_fit(*sums.fit.tolist())
            metrics["actor/gvpo_fit_slope"] = slope
            if self._left_of_first_epoch > 0:
                metrics["actor/gvpo_fit_slope_first_epoch"] = slope
        self._left_of_first_epoch -= 1
        return output

    def _deviation(self, data: TensorDict, log_probs: str) -> Tensor:
        """Return log π(y_i) of this rank's rows minus their prompt's mean, 0 without tokens: (rows,)."""
        mask = data["response_mask"]
        rows = (mask.values(), mask.offsets())
        log_prob = ragged.row_sums(data[log_probs].values(), *rows)
        return log_prob - self._mean(data, log_prob, ragged.row_has_tokens(*rows), over_ranks=True)

    def _log_ratio(self, data: TensorDict) -> tuple[Tensor, Tensor]:
        """Return Δ_i of this rank's rows and which of them are responses, (rows,) each, by a forward pass."""
        check_drift_engine(self.engine_config.strategy)
        view = data.copy()
        # verl's inference sizes need not divide a mini-batch, but its training sizes do. They also cut the
        # rows as the update will, so that both passes round equally.
        tu.assign_non_tensor(
            view,
            use_remove_padding=self.model_config.get("use_remove_padding", False),
            use_dynamic_bsz=self.engine_config.use_dynamic_bsz,
            max_token_len_per_gpu=self.engine_config.max_token_len_per_gpu,
            micro_batch_size_per_gpu=self.engine_config.micro_batch_size_per_gpu,
            use_fused_kernels=self.engine_config.use_fused_kernels,
            calculate_entropy=False,
        )
        with self.engine.eval_mode(disable_auto_offload=tu.get(data, "disable_auto_offload", default=False)):
            output = self.engine.infer_batch(view)
        mask, old_log_prob = data["response_mask"], data["old_log_probs"].values()
        log_prob = response_from_nested(output["model_output"]["log_probs"].to(mask.device), mask).values()
        rows = (mask.values(), mask.offsets())
        return ragged.row_log_ratio(log_prob, old_log_prob, *rows), ragged.row_has_tokens(*rows)

    def _mean(self, data: TensorDict, values: Tensor, member: Tensor, *, over_ranks: bool) -> Tensor:
        """Return the mean of each row's prompt over the rows here, or on all ranks: (rows,)."""
        index = data[wire.Field.GROUP_INDEX]
        sums = gvpo.drift_sums(values, index, member, tu.get(data, key=wire.Field.NUM_GROUPS))
        if over_ranks:
            sums = sums.to(get_device_id())
            self._add_over_ranks(sums)
        return gvpo.mean_drift(sums.to(index.device), index, member, data[wire.Field.GROUP_SIZE])

    def _add_over_ranks(self, values: Tensor) -> None:
        dist.all_reduce(values, group=self.engine.get_data_parallel_group())

    def _drift_of(self, data: TensorDict) -> wire.Drift:
        """Return what gives the loss the drift of the rows of a micro-batch."""
        if self._old_is_current:
            return wire.no_drift
        if wire.Field.GROUP_DRIFT in data.keys():  # noqa: SIM118
            measured = data[wire.Field.GROUP_DRIFT]
            return lambda *_: measured
        return partial(self._mean, data, over_ranks=_source(data) is wire.DriftSource.RANKS)

    def _with_groups(
        self, loss_fn: _LossFunction, *, data: TensorDict, **arguments: Any
    ) -> tuple[Tensor, dict[str, Any]]:
        if wire.Field.GROUP_INDEX not in data.keys():  # noqa: SIM118
            return loss_fn(data=data, **arguments)
        groups = wire.GroupRows(
            index=data[wire.Field.GROUP_INDEX],
            size=data[wire.Field.GROUP_SIZE],
            drift=self._drift_of(data),
            old_deviation=data[wire.Field.OLD_DEVIATION],
            anchor_deviation=data[wire.Field.ANCHOR_DEVIATION],
            old_is_current=self._old_is_current,
        )
        with wire.GROUPS.set(groups):
            loss, metrics = loss_fn(data=data, **arguments)
        # verl marks all metrics of a registered loss as means over micro-batches; these are parts of a sum.
        for name in metrics.keys() & set(SUMMED_METRICS):
            metrics[name].aggregation = AggregationType.SUM
        return loss, metrics


class GroupActorRolloutRefWorker(ReferenceSyncWorkerMixin, ActorRolloutRefWorker):  # type: ignore[misc]
    """verl's worker, with `GroupTrainingWorker` as its actor and a reference that can be synchronised."""

    actor_worker_cls = GroupTrainingWorker


class GroupDetachActorWorker(ReferenceSyncWorkerMixin, DetachActorWorker):  # type: ignore[misc]
    """The same for the trainer mode whose rollout runs on separate machines."""

    actor_worker_cls = GroupTrainingWorker


def check_drift_engine(strategy: str) -> None:
    """Refuse GVPO's forward pass between updates on an engine where it was never tried.

    Megatron's last pipeline stage alone has log-probs; torchtitan and veomni need accelerators to be tried.

    Raises:
        SettingError: the drift would have to be measured there.
    """
    if strategy not in DRIFT_ENGINES:
        key = f"{ACTOR}.strategy"
        raise SettingError(
            key,
            strategy,
            why="GVPO's drift between updates is not measured there",
            valid=(*DRIFT_ENGINES, "one update per rollout"),
            fix=f"{key}=fsdp2",
        )


def _source(data: TensorDict) -> wire.DriftSource:
    return wire.DriftSource(tu.get(data, key=wire.Field.DRIFT_SOURCE))
