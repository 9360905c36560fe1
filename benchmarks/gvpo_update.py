"""Measure the cost of GVPO's drift: seconds of verl's actor update with ``+algo=gvpo`` and ``+algo=grpo``.

Uses verl's FSDP2 worker on one rank, a Qwen2 model with random weights, and the same batch for both. One
update per rollout needs no drift; of four updates, three need it. Also prints how well the two trainers
balance rows over ranks, on lengths with a long tail.
"""

import argparse
import os
import statistics
import tempfile
import time
from functools import partial
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from tensordict import TensorDict

PROMPT = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--responses", type=int, default=4, help="per prompt")
    parser.add_argument("--tokens", type=int, default=160, help="most tokens of a response")
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29577"}
    with tempfile.TemporaryDirectory() as folder:
        size = save_model(folder, options)
        table = Table("updates", "grpo s", "gvpo s", "ratio", title=f"{size / 1e6:.0f} M parameters")
        for updates in (1, 4):
            workers = {loss: make_worker(folder, loss, options) for loss in ("grpo", "gvpo")}
            seconds: dict[str, list[float]] = {loss: [] for loss in workers}
            for _ in range(options.repeat + 1):
                for loss, worker in workers.items():
                    seconds[loss].append(timed_update(worker, make_batch(options, loss), updates, options))
            grpo, gvpo = (statistics.median(seconds[loss][1:]) for loss in ("grpo", "gvpo"))
            ratios = [b / a for a, b in zip(seconds["grpo"][1:], seconds["gvpo"][1:], strict=True)]
            table.add_row(str(updates), f"{grpo:.2f}", f"{gvpo:.2f}", f"{statistics.median(ratios):.3f}")
        Console().print(table)
    Console().print(imbalance())


def save_model(folder: str, options: argparse.Namespace) -> int:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=4096,
        hidden_size=options.width,
        intermediate_size=4 * options.width,
        num_hidden_layers=options.layers,
        num_attention_heads=8,
        num_key_value_heads=8,
        tie_word_embeddings=True,
        dtype="float32",
    )
    model = Qwen2ForCausalLM(config)
    model.save_pretrained(folder)
    return model.num_parameters()


def make_worker(folder: str, loss: str, options: argparse.Namespace) -> Any:
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import (
        ActorConfig,
        FSDPEngineConfig,
        FSDPOptimizerConfig,
        HFModelConfig,
        TrainingWorkerConfig,
    )
    from verl.workers.utils.losses import ppo_loss

    from grpo_verl_ext.verl_plugin.loss_config import LossConfig
    from grpo_verl_ext.verl_plugin.losses import VARIANTS
    from grpo_verl_ext.verl_plugin.workers.group_drift import GroupTrainingWorker

    fp32 = {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    worker = GroupTrainingWorker(
        TrainingWorkerConfig(
            model_type="language_model",
            model_config=HFModelConfig(
                path=folder, load_tokenizer=False, use_remove_padding=False,
                enable_gradient_checkpointing=False, override_config={"attn_implementation": "sdpa"},
            ),
            engine_config=FSDPEngineConfig(
                strategy="fsdp2", use_torch_compile=False, use_dynamic_bsz=False, micro_batch_size_per_gpu=4,
                mixed_precision=fp32,
            ),
            optimizer_config=FSDPOptimizerConfig(lr=1e-6),
            checkpoint_config=CheckpointConfig(),
        )
    )  # fmt: skip
    worker.reset()
    actor = ActorConfig(
        strategy="fsdp2",
        rollout_n=options.responses,
        ppo_micro_batch_size_per_gpu=4,
        policy_loss=LossConfig(loss_mode=loss, gvpo_beta=0.1),
        loss_agg_mode=VARIANTS[loss].loss_agg_mode,
    )
    worker.set_loss_fn(partial(ppo_loss, config=actor))
    return worker


def make_batch(options: argparse.Namespace, loss: str) -> TensorDict:
    """Return responses of random lengths, as verl's trainer passes them to a worker."""
    generator = torch.Generator().manual_seed(0)
    rows = options.prompts * options.responses
    lengths = torch.randint(options.tokens // 2, options.tokens + 1, (rows,), generator=generator).tolist()
    tokens = [torch.randint(0, 4096, (PROMPT + length,), generator=generator) for length in lengths]

    def nested(values: list[torch.Tensor]) -> torch.Tensor:
        return torch.nested.as_nested_tensor(values, layout=torch.jagged)

    mask = nested([torch.ones(length, dtype=torch.int64) for length in lengths])
    fields = {
        "input_ids": nested(tokens),
        "position_ids": nested([torch.arange(len(row)) for row in tokens]),
        "prompts": nested([row[:PROMPT] for row in tokens]),
        "responses": nested([row[PROMPT:] for row in tokens]),
        "response_mask": mask,
        "loss_mask": mask,
        "old_log_probs": nested([torch.full((length,), -8.0) for length in lengths]),
        "advantages": nested([torch.randn(1, generator=generator).expand(length) for length in lengths]),
    }
    if loss == "gvpo":
        fields["group_index"] = torch.arange(options.prompts).repeat_interleave(options.responses)
        fields["group_size"] = torch.full((rows,), options.responses)
    return TensorDict(fields, batch_size=rows)


def timed_update(worker: Any, batch: TensorDict, updates: int, options: argparse.Namespace) -> float:
    from verl.utils import tensordict_utils as tu

    rows = options.prompts * options.responses
    tu.assign_non_tensor(
        batch,
        mini_batch_size=rows // updates,
        global_batch_size=rows // updates,
        epochs=1,
        temperature=1.0,
        num_groups=options.prompts,
        anchor_log_probs="old_log_probs",
        old_log_probs_are_current=True,
    )
    start = time.perf_counter()
    worker.train_mini_batch(batch)
    return time.perf_counter() - start


def imbalance() -> Table:
    """Return a table of the busiest rank's tokens over an even share, for the step and per mini-batch."""
    from verl.utils.seqlen_balancing import calculate_workload, get_seqlen_balanced_partitions

    from grpo_verl_ext.verl_plugin.trainer.group_packing import balanced_over_ranks, whole_groups

    table = Table(
        "ranks", "verl: batch", "verl: mini-batches", "grpo_ext_sync: batch", "grpo_ext_sync: mini-batches"
    )
    table.title = (
        "Busiest rank ÷ even share, 128 prompts × 8, log-normal lengths, 4 mini-batches, mean of 20 seeds"
    )
    for dp_size in (2, 4, 8, 16):
        found: list[list[float]] = []
        for seed in range(20):
            generator = torch.Generator().manual_seed(seed)
            lengths = (torch.randn(1024, generator=generator) + 6).exp().clamp(16, 4096).long()
            workload = calculate_workload(lengths).tolist()
            verls = get_seqlen_balanced_partitions(workload, dp_size, equal_size=True)
            groups = whole_groups([row % 128 for row in range(1024)], capacity=256)
            ours = balanced_over_ranks(groups, workload, dp_size)
            found.append([busiest(r, lengths, parts) for r in (verls, ours) for parts in (1, 4)])
        means = [f"{statistics.mean(column):.3f}" for column in zip(*found, strict=True)]
        table.add_row(str(dp_size), *means)
    return table


def busiest(ranks: list[list[int]], lengths: torch.Tensor, parts: int) -> float:
    """Return Σ over mini-batches of the busiest rank's tokens, over the tokens of an even share."""
    share = len(ranks[0]) // parts
    waits = [
        max(int(lengths[rank[j * share : (j + 1) * share]].sum()) for rank in ranks) for j in range(parts)
    ]
    return sum(waits) * len(ranks) / int(lengths.sum())


if __name__ == "__main__":
    main()
