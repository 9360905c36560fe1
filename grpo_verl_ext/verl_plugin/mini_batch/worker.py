"""verl's actor worker, extended by what a loss takes from the whole mini-batch: its statistic.

The statistic of a loss comes from the training pass where the trainer has put the rows together
(`wire.StatisticSource`): from a micro-batch, or from those of all ranks, which gather the rows. Elsewhere a
forward pass before the update measures it. An update whose policy has not moved since the rollout needs
neither: its log-probs are the old ones.

**Low precision.** ``old_log_probs`` come from a separate forward pass with other micro-batches, hence other
rounding: in bf16 some hundredths of a nat per token. Where the policy has not moved, the update's own
log-probs serve every loss as the old ones, so that all ratios are 1 in value (`STATISTIC_ENGINES`).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from tensordict import TensorDict
from torch import Tensor
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_id
from verl.utils.metric import AggregationType, Metric
from verl.workers.engine_workers import TrainingWorker
from verl.workers.utils.padding import no_padding_2_padding, response_from_nested

from grpo_verl_ext import catalogue
from grpo_verl_ext.algorithms import aggregation, mini_batch
from grpo_verl_ext.catalogue import STATISTIC_ENGINES, Loss, TokenLoss
from grpo_verl_ext.verl_plugin import wire
from grpo_verl_ext.verl_plugin.batch.fields import like
from grpo_verl_ext.verl_plugin.wire import StatisticSource

_FIELDS = {"rollout_log_prob": wire.Field.ROLLOUT_LOG_PROBS, "ref_log_prob": wire.Field.REF_LOG_PROB}
"""Inputs of a loss that a batch has, with their fields."""
_KEPT = ("log_probs", "entropy")
_LossFunction = Callable[..., tuple[Tensor, dict[str, Any]]]


class MiniBatchTrainingWorker(TrainingWorker):  # type: ignore[misc]  # verl ships no types
    """Training worker that gives the loss the statistic that it needs of the mini-batch."""

    _config: Any
    """verl's ActorConfig, with which it calls the loss."""
    _loss: Loss | None = None
    _old_is_current = False
    _takes_old = False
    """Whether the first update takes the old log-probs of its rows from its own pass, and keeps them."""
    _kept: dict[tuple[bool, int], tuple[Tensor, ...]]
    """What `_KEPT` names, of the first update's rows by their place, then of those of a pass before it."""
    _update = 0
    """Updates on this rollout before the one at hand."""
    _first_epoch = 0
    """Updates on prompts that no update on this rollout has seen before."""

    def set_loss_fn(self, loss_fn: _LossFunction) -> None:
        """Wrap verl's loss function, so that the loss can read the statistic (`wire.PASSED`)."""
        self._config = loss_fn.keywords["config"]  # type: ignore[attr-defined]  # verl's partial
        self._loss = catalogue.LOSSES.get(str(self._config.policy_loss.loss_mode))
        self._kept = {}
        super().set_loss_fn(partial(self._called, partial(self._take_old, loss_fn)))

    def infer_batch(self, data: TensorDict) -> TensorDict:
        """Run verl's pass and keep what it returns, or return what was kept, where the trainer says so."""
        keeps, returns = (tu.pop(data, key=key, default=False) for key in (wire.Field.KEEPS, wire.Field.KEPT))
        if returns:
            kept, self._kept = [self._kept[place] for place in sorted(self._kept)], {}
            columns = zip(_KEPT, zip(*kept, strict=True), strict=True)
            nested = {name: torch.nested.as_nested_tensor(of, layout=torch.jagged) for name, of in columns}
            return tu.get_tensordict(nested, {"metrics": {}})
        output = super().infer_batch(data)
        if keeps:
            self._keep(output, [(True, place) for place in range(data.shape[0])])
        return output

    def _keep(self, output: Any, places: Sequence[tuple[bool, int]]) -> None:
        columns = (output[name].detach().cpu().unbind() for name in _KEPT)
        self._kept |= dict(zip(places, zip(*columns, strict=True), strict=True))

    def train_mini_batch(self, data: TensorDict) -> TensorDict:
        """Do all updates on the batch of one rollout; at the first, the policy may be that of the rollout."""
        self._old_is_current = tu.pop(data, key=wire.Field.OLD_IS_CURRENT, default=False)
        self._takes_old = tu.pop(data, key=wire.Field.OLD_OF_UPDATE, default=False)
        if self._takes_old:
            data[wire.Field.PLACE] = torch.arange(data.shape[0])
        self._update = 0
        rows = data.shape[0] * self.engine.get_data_parallel_size()
        self._first_epoch = rows // tu.get(data, key="mini_batch_size")
        return super().train_mini_batch(data)

    def train_batch(self, data: TensorDict) -> TensorDict:
        """Do one update: the statistic, where the update itself does not give it, then verl's update."""
        if self._measures(data):
            if self._old_is_current:
                old = data[wire.Field.OLD_LOG_PROBS].values()
                data[wire.Field.STATISTIC] = self._statistic(data, old, over_ranks=True)
            elif tu.get(data, key=wire.Field.STATISTIC_SOURCE) == StatisticSource.FORWARD_PASS.value:
                data[wire.Field.STATISTIC] = self._statistic(data, self._log_prob(data), over_ranks=True)
        if self._takes_old:
            entropy = self.engine.compute_entropy_from_logits
            if not tu.get(data, key="calculate_entropy", default=False):  # a metric's alone
                self.engine.compute_entropy_from_logits = torch.no_grad()(entropy)
            tu.assign_non_tensor(data, calculate_entropy=True)
        output = super().train_batch(data)
        if self._takes_old:
            self.engine.compute_entropy_from_logits = entropy
        self._old_is_current = self._takes_old = False
        self._update += 1
        return output

    def _take_old(self, loss_fn: _LossFunction, data: TensorDict, **given: Any) -> Any:
        """Call verl's loss; where the update's own log-probs are the old ones, with these, and keep them."""
        if not self._takes_old or "model_output" not in given:
            return loss_fn(data=data, **given)
        output = given["model_output"]
        self._keep(output, [(False, place) for place in data[wire.Field.PLACE].tolist()])
        data = data.copy()
        data[wire.Field.OLD_LOG_PROBS] = like(data["response_mask"], _of_responses(output, data))
        if not output["entropy"].requires_grad:
            given["model_output"] = {name: each for name, each in output.items() if name != "entropy"}
        return loss_fn(data=data, **given)

    def _measures(self, data: TensorDict) -> bool:
        """Whether the loss needs a statistic, and a trainer mode of this package has numbered the rows."""
        needs = None if self._loss is None else self._loss.needs
        return needs is not None and wire.Field.ROW_NUMBER in data.keys()  # noqa: SIM118  # a TensorDict

    def _log_prob(self, data: TensorDict) -> Tensor:
        """Return log π_θ of this rank's response tokens, (N,), by a forward pass."""
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
        return _of_responses(output["model_output"], data)

    def _statistic(self, data: TensorDict, log_prob: Tensor, *, over_ranks: bool) -> Tensor:
        """Return the statistic for the tokens of these rows, ragged like them, at these log-probs, (N,)."""
        assert self._loss is not None
        needs, mask = self._loss.needs, data["response_mask"]
        assert needs is not None
        written = mask.values().bool()
        tokens = (
            log_prob.to(written.device),
            data[wire.Field.OLD_LOG_PROBS].values(),
            data["advantages"].values(),
        )
        lengths = torch.nested.to_padded_tensor(mask, 0).bool().sum(-1)
        numbers = (
            data[name] for name in (wire.Field.ROW_NUMBER, wire.Field.GROUP_INDEX, wire.Field.GROUP_SIZE)
        )
        part = mini_batch.PartOfRows(
            torch.stack([each.double()[written] for each in tokens]), torch.stack([lengths, *numbers])
        )
        parts, own = [part], 0
        if over_ranks:
            group, of_ranks = self.engine.get_data_parallel_group(), []
            for values in (each.to(get_device_id()) for each in part):
                widths = values.new_zeros(dist.get_world_size(group), 1, dtype=torch.int64)
                dist.all_gather([*widths], torch.full_like(widths[0], values.shape[1]), group=group)
                filler = (0, int(widths.max()) - values.shape[1])
                filled = torch.nn.functional.pad(values, filler).contiguous()
                found = [torch.empty_like(filled) for _ in widths]
                dist.all_gather(found, filled, group=group)
                of_ranks.append([each[:, : int(width)] for each, width in zip(found, widths, strict=True)])
            parts = [mini_batch.PartOfRows(*each) for each in zip(*of_ranks, strict=True)]
            own = dist.get_rank(group)
        seed = tu.get(data, key=wire.Field.STATISTIC_SEED) + self._update
        values = mini_batch.evaluated(lambda rows: needs.compute(rows, self._config), parts, own, seed)
        wide = torch.promote_types(log_prob.dtype, torch.float32)
        result = torch.zeros_like(written, dtype=wide)
        result[written] = values.to(result)
        ragged: Tensor = like(mask, result)
        return ragged

    def _statistic_of(self, data: TensorDict, model_output: dict[str, Any]) -> Tensor:
        """Return the statistic for the tokens of a micro-batch: (B, T)."""
        if wire.Field.STATISTIC in data.keys():  # noqa: SIM118
            ragged = data[wire.Field.STATISTIC]
        else:
            current = _of_responses(model_output, data)
            over_ranks = tu.get(data, key=wire.Field.STATISTIC_SOURCE) == StatisticSource.RANKS.value
            ragged = self._statistic(data, current, over_ranks=over_ranks)
        padded: Tensor = torch.nested.to_padded_tensor(ragged, 0)
        return padded

    def _called(self, loss_fn: _LossFunction, data: TensorDict, model_output: Any = None, **more: Any) -> Any:
        """Call the loss; to distil top tokens, verl's engines first ask it for what needs the logits."""
        if model_output is None:
            return loss_fn(data=data, **more)
        inputs = {"statistic": self._statistic_of(data, model_output)} if self._measures(data) else {}
        for name in self._loss.inputs if isinstance(self._loss, TokenLoss) else ():
            if name in _FIELDS:
                inputs[name] = torch.nested.to_padded_tensor(data[_FIELDS[name]], 0)
            elif name == "entropy":
                inputs[name] = no_padding_2_padding(model_output[name].detach(), data)
        gap = {}
        takes = self._takes_old or self.engine_config.strategy not in STATISTIC_ENGINES
        if self._old_is_current and not takes:
            # The update's own log-probs serve as old ones; how far those were from them is logged.
            old, mask = data[wire.Field.OLD_LOG_PROBS], data["response_mask"]
            current = _of_responses(model_output, data).to(old.dtype)
            gaps, counts = (current - old.values()).abs()[None], mask.values().bool()[None]
            mean = aggregation.token_mean(gaps, counts, data["batch_num_tokens"], data["dp_size"])
            gap["actor/old_log_prob_gap"] = Metric(value=mean, aggregation=AggregationType.SUM)
            data = data.copy()
            data[wire.Field.OLD_LOG_PROBS] = like(old, current)
        with wire.passing(inputs=inputs):
            loss, metrics = loss_fn(model_output=model_output, data=data, **more)
        return loss, metrics | gap


def _of_responses(model_output: dict[str, Any], data: TensorDict) -> Tensor:
    """Return the log-probs of the response tokens, without gradient: (N,)."""
    mask = data["response_mask"]
    values: Tensor = response_from_nested(model_output["log_probs"].detach().to(mask.device), mask).values()
    return values
