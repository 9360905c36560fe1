"""verl's FSDP engine of a language model, computing only what the loss reads.

Log-probs and entropies are those of verl's own pass but for rounding. A model of which that is not true, by
a sliding window or a layer that is no attention, is refused: before a row that is longer than any before,
both passes compute it and are compared.
"""

import inspect
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from tensordict import TensorDict
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_name
from verl.utils.seqlen_balancing import get_seqlen_balanced_partitions
from verl.utils.torch_functional import logprobs_from_logits
from verl.workers.engine.fsdp import transformer_impl
from verl.workers.engine_workers import TrainingWorker
from verl.workers.utils.padding import response_from_nested
from wrapt import wrap_function_wrapper

from grpo_verl_ext.verl_plugin.gvpo import GroupTrainingWorker
from grpo_verl_ext.verl_plugin.shared_prompts.attention import ATTENTION
from grpo_verl_ext.verl_plugin.shared_prompts.layout import by_prompt, count_fed, fed_rows, layout_of

_OFF = "Type: algorithm.grpo_ext.shared_prompts=false"
_MARK = "grpo_ext_shared_prompts"
"""Key of a batch whose micro-batches are cut by fed tokens."""


class _SharedPromptsEngine(transformer_impl.FSDPEngineWithLMHead):  # type: ignore[misc]  # verl ships no types
    """What is computed otherwise, before the class of an engine on verl's."""

    _model: Any
    _attention: str
    """The configured attention function, with which a pass is verl's own."""
    _ours: str
    """The one in its place."""
    _longest = 0
    """Tokens of the longest row of which both passes were compared."""

    def _build_module(self) -> Any:
        self._model = super()._build_module()
        self._attention = self._model.config._attn_implementation
        self._ours = ATTENTION.get(self._attention, ATTENTION["sdpa"])
        self._model.set_attn_implementation(self._ours)
        keeps = "logits_to_keep" in inspect.signature(self._model.forward).parameters
        if not keeps or self._model.config._attn_implementation != self._ours:
            needed = "whose attention function can be set, and some of whose logits can be left out"
            raise ValueError(f"{type(self._model).__name__} is no model {needed}. {_OFF}")
        return self._model

    def forward_backward_batch(
        self, data: TensorDict, loss_function: Callable[..., Any] | None, forward_only: bool = False
    ) -> Any:
        """Compare both passes where a row is longer than before, then run verl's loop over micro-batches."""
        self._compare(data)
        tu.assign_non_tensor(data, **{_MARK: True})
        return super().forward_backward_batch(data, loss_function, forward_only)

    def prepare_model_inputs(self, micro_batch: TensorDict) -> Any:
        """Return the fed tokens, what they attend to, and whose logits are needed."""
        if self._model.config._attn_implementation == self._attention:
            return super().prepare_model_inputs(micro_batch)
        ids, positions = micro_batch["input_ids"], micro_batch["position_ids"]
        if positions.dim() != ids.dim() or isinstance(micro_batch["temperature"], Tensor):
            raise ValueError(f"shared prompts support no images and no temperature per row. {_OFF}")
        at = layout_of(micro_batch["prompts"], micro_batch["responses"])
        inputs = {
            "input_ids": ids.values()[at.source][None],
            "attention_mask": None,
            "position_ids": positions.values()[at.source][None],
            "logits_to_keep": at.kept,
            "shared_prompts": lambda: at,  # whose tensors FSDP would copy for each layer
        }
        return inputs, {"layout": at}

    def prepare_model_outputs(
        self, output: Any, output_args: dict[str, Any], micro_batch: TensorDict, *rest: Any, **more: Any
    ) -> dict[str, Tensor]:
        """Return log-probs and entropies of the response tokens, where verl looks for them; elsewhere 0."""
        if "layout" not in output_args:
            return dict(super().prepare_model_outputs(output, output_args, micro_batch, *rest, **more))
        at, config, ids = output_args["layout"], self.engine_config, micro_batch["input_ids"]
        logits = output.logits[0]
        if micro_batch["temperature"] != 1:
            as_verl_rounds = torch.tensor(micro_batch["temperature"], dtype=torch.float32).clamp(min=1e-8)
            logits = logits / as_verl_rounds.to(logits)
        label = ids.values()[at.token]
        values, size = {}, max(1, 2**19 // logits.shape[-1])  # of so many rows there are temporary copies
        if tu.get(micro_batch, key="calculate_entropy", default=False):
            entropy = self.compute_entropy_from_logits
            if config.entropy_checkpointing:
                entropy = partial(checkpoint, entropy, use_reentrant=False)
            values["entropy"] = torch.cat([entropy(rows) for rows in logits.split(size)])[at.logits_of]
        if torch.finfo(logits.dtype).bits < 32:
            values["log_probs"] = logprobs_from_logits(logits=logits[at.logits_of], labels=label)
        else:
            if any(each.requires_grad for each in values.values()):
                logits = logits.clone()  # the entropy's gradient reads what this one overwrites
            values["log_probs"] = _LogProbs.apply(logits, at.logits_of, label, size)  # type: ignore[no-untyped-call]
        zeros = torch.zeros_like(ids.values(), dtype=torch.float32)
        before = (at.token - 1,)  # A token's value stands one place before it.
        nested = partial(torch.nested.nested_tensor_from_jagged, offsets=ids.offsets())
        return {name: nested(zeros.to(each).index_put(before, each)) for name, each in values.items()}

    @torch.no_grad()
    def _compare(self, data: TensorDict) -> None:
        """Raise ValueError where verl's pass has other log-probs for the longest row and one beside it."""
        prompts, responses = (data[name].offsets().diff().tolist() for name in ("prompts", "responses"))
        lengths = [p + r if r > 1 else 0 for p, r in zip(prompts, responses, strict=True)]
        longest = _largest([max(lengths)], self.get_data_parallel_group())[0]
        if longest <= self._longest:
            return
        self._longest = longest
        fed = fed_rows(data["prompts"], data["responses"])
        first = max(range(len(fed)), key=lambda row: lengths[row])
        beside = sorted(
            {*range(len(fed))} - {first},
            key=lambda row: (fed[row][0] == fed[first][0], fed[row] != fed[first], lengths[row]),
        )
        rows, found = [first, *beside[-1:]], []
        for then, parts in ((self._attention, [rows]), (self._ours, [[row] for row in rows])):
            for part in parts:  # by ours, and then by verl's
                sample = tu.index_select_tensor_dict(data, part)
                tu.assign_non_tensor(sample, calculate_entropy=False)
                _, output = self.forward_step(sample, loss_function=None, forward_only=True)
                log_probs, own = output["model_output"]["log_probs"].cpu(), sample["responses"].cpu()
                found.append(response_from_nested(log_probs, own).values())
            self._model.set_attn_implementation(then)
        ours, verls = torch.cat(found).chunk(2)
        apart = ((ours - verls).abs() / verls.abs().clamp(min=1)).nan_to_num(torch.inf)
        is_wide = min(torch.finfo(x).bits for x in (self._model.dtype, self._autocast_dtype)) >= 32
        allowed = 1e-5 if is_wide else 0.1  # relative where log-probs are below −1
        if len(apart) and apart.max() > allowed:
            raise ValueError(
                f"shared prompts change log-probs of {type(self._model).__name__} by up to {apart.max():.2g} "
                f"in rows of up to {longest} tokens, where rounding explains {allowed:g}. {_OFF}"
            )


class _LogProbs(torch.autograd.Function):
    """log p of T labels from K rows of logits, (K, V) → (T,); its gradient is written over the logits."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, row: Tensor, label: Tensor, size: int) -> Tensor:
        parts, ctx.size = torch.split(logits, size), size
        sums = torch.cat([each.logsumexp(-1) for each in parts])
        ctx.save_for_backward(logits, sums, row, label)
        return logits[row, label] - sums[row]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        logits, sums, row, label = ctx.saved_tensors
        weights = torch.zeros_like(sums).index_add_(0, row, -grad)
        columns = (each.split(ctx.size) for each in (logits, sums[:, None], weights[:, None]))
        for rows, total, weight in zip(*columns, strict=True):
            rows.sub_(total).exp_().mul_(weight)
        return logits.index_put_((row, label), grad, accumulate=True), None, None, None


def sharing_prompts(worker: Any) -> Any:
    """Return verl's TrainingWorker, or a class on it, whose engine computes only what the loss reads."""

    class Sharing(worker):  # type: ignore[misc]
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            kind = type(self.engine)  # which has not built its model yet
            self.engine.__class__ = type(kind.__name__, (_SharedPromptsEngine, kind), {})

    return Sharing


class SharedPromptsWorkerMixin:
    """Chooses the engines of actor and reference, mixed in before verl's ActorRolloutRefWorker."""

    actor_worker_cls = sharing_prompts(GroupTrainingWorker)
    ref_worker_cls = sharing_prompts(TrainingWorker)


def _micro_batches(verls: Callable[..., Any], _: Any, args: Any, kwargs: Any) -> Any:
    """Return the micro-batches of a rank's rows and the rows of each, as verl's function does.

    With dynamic batching each has at most ``max_token_len_per_gpu`` fed tokens, and all ranks get the same
    number. The rows of a prompt stay together, unless they are too many, or another rank has too few prompts.
    Those that ``force_group_size`` binds always do.
    """
    data, group = kwargs["data"], kwargs["dp_group"]
    if not (tu.get(data, _MARK, default=False) and tu.get(data, "use_dynamic_bsz", default=True)):
        return verls(*args, **kwargs)
    fed = fed_rows(data["prompts"], data["responses"])
    budget, bound = int(data["max_token_len_per_gpu"]), tu.get(data, key="force_group_size", default=1)
    blocks = [list(range(start, start + bound)) for start in range(0, len(fed), bound)]
    for units in (by_prompt(fed, blocks, budget), blocks):
        costs = [count_fed(fed[row] for row in unit) for unit in units]
        least, most = _largest([math.ceil(sum(costs) / budget), -len(units)], group)
        for number in range(least, 1 - most):
            parts = get_seqlen_balanced_partitions(costs, k_partitions=number, equal_size=False)
            if _largest([max(sum(costs[unit] for unit in part) for part in parts)], group)[0] <= budget:
                rows = [sorted(row for unit in part for row in units[unit]) for part in parts]
                chosen = [tu.index_select_tensor_dict(data, each) for each in rows] if rows[1:] else [data]
                return chosen, rows
    raise ValueError(
        f"rows that must stay together have more than the {budget} tokens of a micro-batch. Type: "
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=<more>"
    )


def _largest(numbers: list[int], group: Any) -> list[int]:
    """Return the largest of each number over the ranks."""
    found = torch.tensor(numbers, device=get_device_name())
    dist.all_reduce(found, op=dist.ReduceOp.MAX, group=group)
    return [int(each) for each in found.tolist()]


# verl's engine has no hook here; it counts n · (P + R) tokens for a prompt and parts its rows.
wrap_function_wrapper(transformer_impl, "prepare_micro_batches", _micro_batches)
