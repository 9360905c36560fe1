"""Run verl's real FSDP2 worker on gloo processes, in float64 or, as verl trains by default, in bf16.

A module of its own, so that processes can import it. A rank reads ``job.pt`` from the test and trains once
per variant, on the rows that the trainer would hand it. Rank 0 writes ``result.pt``: gradients, metrics and
parameters of every update, the log-ratios Δ_i used by the loss for this rank's rows, the number of forward
passes besides the updates' own, and the parameters after the last update.
"""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from tensordict import TensorDict
from torch import Tensor
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

Row = dict[str, Any]
LEARNING_RATE = 1e-3
LORA_ALPHA = 16
BUDGET = 64
"""Tokens of a micro-batch with dynamic batching: four of the longest rows."""
MIXED_PRECISION = {
    "float64": dict.fromkeys(("param_dtype", "reduce_dtype", "buffer_dtype"), "double"),
    "single": dict.fromkeys(("param_dtype", "reduce_dtype", "buffer_dtype"), "fp32"),
    "bf16": None,  # verl's default: weights in fp32, computed with in bf16, gradients reduced in fp32
}


def tiny_model(seed: int = 0, **changes: Any) -> GPTNeoXForCausalLM:
    """GPT-NeoX, because Qwen2's normalisation computes in single precision whatever its weights are."""
    values = {
        "vocab_size": 23,
        "hidden_size": 8,
        "intermediate_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,  # verl asks every model for it
        "max_position_embeddings": 160,
        "tie_word_embeddings": True,
        "attn_implementation": "sdpa",
    }
    config = GPTNeoXConfig(**{**values, **changes})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return GPTNeoXForCausalLM(config).double().eval()


def batch_of(rows: list[Row], extra_info: dict[str, Any]) -> TensorDict:
    """Rows as verl's workers get them: ragged fields nested, numbers stacked, text as it is."""
    from verl.utils import tensordict_utils as tu

    def column(values: list[Any]) -> Any:
        if not isinstance(values[0], Tensor):
            return values
        if values[0].dim() == 0:
            return torch.stack(values)
        return torch.nested.as_nested_tensor(values, layout=torch.jagged)

    fields = {name: column([row[name] for row in rows]) for name in rows[0]}
    return tu.get_tensordict(fields, non_tensor_dict=extra_info)


def train(
    job: dict[str, Any], variant: dict[str, Any], rows: list[Row], extra: dict[str, Any]
) -> dict[str, Any]:
    """All updates on the batch of one rollout."""
    from verl.utils import tensordict_utils as tu
    from verl.workers.utils.losses import ppo_loss

    from grpo_verl_ext.algorithms import gvpo
    from grpo_verl_ext.catalogue import LOSSES

    worker = make_worker(job["model"], variant)
    worker.reset()
    if variant["dtype"] == "float64":
        # verl's word for "no autocast"; there is none to float64
        worker.engine._autocast_dtype = torch.float32
    worker.set_loss_fn(partial(variant.get("loss_function", ppo_loss), config=actor_config(job, variant)))
    gradients: list[dict[str, Tensor]] = []
    policies: list[dict[str, Tensor]] = []
    log_ratios: list[list[Tensor]] = [[]]
    forward_passes = 0
    engine_step, engine_infer = worker.engine.optimizer_step, worker.engine.infer_batch
    residual = gvpo.residual

    def optimizer_step() -> Any:
        gradients.append(
            {
                name: parameter.grad.full_tensor().clone().double()
                for name, parameter in worker.engine.module.named_parameters()
                if parameter.requires_grad
            }
        )
        if variant["dtype"] == "bf16":  # for which alone the test computes log-ratios of its own
            policies.append(parameters_of(worker))
        log_ratios.append([])
        return engine_step()

    def infer_batch(*arguments: Any) -> Any:
        nonlocal forward_passes
        forward_passes += 1
        return engine_infer(*arguments)

    def recorded_residual(log_ratio: Tensor, *others: Any) -> Tensor:
        log_ratios[-1].append(log_ratio.detach().double())
        return residual(log_ratio, *others)

    worker.engine.optimizer_step, worker.engine.infer_batch = optimizer_step, infer_batch
    start = parameters_of(worker)
    if getattr(LOSSES.get(variant["loss"]), "needs", None) is None:
        # Then the trainer does not number rows and groups.
        rows = [{k: v for k, v in row.items() if not k.startswith(("group_", "row_"))} for row in rows]
    with patch.object(gvpo, "residual", recorded_residual):
        output = worker.train_mini_batch(batch_of(rows, extra))
    return {
        "start": start,
        "gradients": gradients,
        "policies": policies,
        "forward_passes": forward_passes,
        "log_ratios": [torch.cat(update) for update in log_ratios if update],
        "parameters": parameters_of(worker),
        "metrics": tu.get(output, key="metrics"),
    }


def parameters_of(worker: Any) -> dict[str, Tensor]:
    """Whole, by name."""
    return {name: p.full_tensor().detach().clone() for name, p in worker.engine.module.named_parameters()}


def make_worker(model: str, variant: dict[str, Any]) -> Any:
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig, TrainingWorkerConfig
    from verl.workers.engine_workers import TrainingWorker

    from grpo_verl_ext.verl_plugin.gvpo import GroupTrainingWorker

    class WithoutDrift(GroupTrainingWorker):
        """What verl's own trainer amounts to: the drift taken for zero."""

        def _log_prob(self, data: TensorDict) -> Tensor:
            super()._log_prob(data)
            old: Tensor = data["old_log_probs"].values()
            return old

    config = TrainingWorkerConfig(
        model_type="language_model",
        model_config=HFModelConfig(
            path=model,
            load_tokenizer=False,
            use_remove_padding=False,
            override_config={"attn_implementation": "sdpa"},
            enable_gradient_checkpointing=variant["gradient_checkpointing"],
            lora_rank=variant["lora_rank"],
            lora_alpha=LORA_ALPHA,
        ),
        engine_config=FSDPEngineConfig(
            strategy="fsdp2",
            mixed_precision=MIXED_PRECISION[variant["dtype"]],
            use_torch_compile=False,
            use_dynamic_bsz=variant["micro_batch"] is None,
            micro_batch_size_per_gpu=variant["micro_batch"],
            infer_micro_batch_size_per_gpu=variant["micro_batch"],
            max_token_len_per_gpu=BUDGET,
        ),
        optimizer_config=FSDPOptimizerConfig(
            lr=variant.get("learning_rate", LEARNING_RATE), weight_decay=0.01, clip_grad=1e9
        ),
        checkpoint_config=CheckpointConfig(),
    )
    if variant["worker"] == "shared prompts":
        from grpo_verl_ext.verl_plugin.shared_prompts.engine import sharing_prompts

        return sharing_prompts(GroupTrainingWorker)(config)
    workers = {"ours": GroupTrainingWorker, "no drift": WithoutDrift, "verl": TrainingWorker}
    return workers[variant["worker"]](config)


def actor_config(job: dict[str, Any], variant: dict[str, Any]) -> Any:
    from verl.workers.config import ActorConfig

    from grpo_verl_ext.catalogue import LOSSES, mode_of
    from grpo_verl_ext.verl_plugin.loss_config import LossConfig

    return ActorConfig(
        strategy="fsdp2",
        rollout_n=variant.get("n", job["n"]),
        ppo_micro_batch_size_per_gpu=1,
        use_dynamic_bsz=variant["micro_batch"] is None,
        policy_loss=LossConfig(
            loss_mode=variant["loss"],
            gvpo_beta=job["beta"],
            gvpo_terms=variant["terms"],
            **variant.get("options", {}),
        ),
        loss_agg_mode=mode_of(LOSSES[variant["loss"]]) if variant["loss"] in LOSSES else "token-mean",
        **variant.get("actor", {}),
    )


def run_rank(rank: int, folder: Path) -> None:
    from verl.utils.torch_dtypes import PrecisionType

    def trained(job: dict[str, Any], variant: dict[str, Any], *batch: Any) -> dict[str, Any]:
        if variant["dtype"] != "float64":
            return train(job, variant, *batch)
        # verl knows no double precision: for it, every dtype that verl asks for is double.
        with patch.object(PrecisionType, "to_dtype", staticmethod(lambda precision: torch.float64)):
            return train(job, variant, *batch)

    run_variants(trained, rank, folder)


def run_inference(rank: int, folder: Path) -> None:
    """Compute the log-probs of the rows as verl's actor does; rank 0 writes those of all rows, in order."""

    def computed(job: dict[str, Any], variant: dict[str, Any], rows: list[Row], extra: dict[str, Any]) -> Any:
        from verl.utils import tensordict_utils as tu

        worker = make_worker(job["model"], variant)
        worker.reset()
        found = tu.get(worker.infer_batch(batch_of(rows, extra)), "log_probs").unbind()
        of_ranks: list[Any] = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(of_ranks, [row.clone() for row in found])
        return [row for own in of_ranks for row in own]

    run_variants(computed, rank, folder)


def run_variants(train: Callable[..., Any], rank: int, folder: Path) -> None:
    """Train once for each variant of the job; rank 0 writes the results."""
    torch.set_num_threads(1)
    os.environ["RANK"] = str(rank)
    job = torch.load(folder / "job.pt", weights_only=False)
    results = {}
    for name, variant in job["variants"].items():
        batch = job["batches"][name]
        results[name] = train(job, variant, batch["ranks"][rank], batch["extra_info"])
    torch.distributed.barrier()
    if rank == 0:
        torch.save(results, folder / "result.pt")
    torch.distributed.destroy_process_group()
