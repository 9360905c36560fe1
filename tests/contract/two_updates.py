"""Two updates by the FSDP2 worker of the verl that is on the path, on one rank and on two, in float64.

``python tests/contract/two_updates.py`` prints the largest relative difference of the parameters between one
rank with whole mini-batches and two ranks with single responses. Where verl has no platforms (0.8), this file
alone gives its worker what an engine on a processor needs; the package does not.
"""

import os
import sys
import types
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))
os.environ["VERL_PLATFORM"] = "cpu"

import fsdp2_ranks
from ray_cluster import free_ports

LOSSES = ("grpo", "dapo", "dr_grpo")
LENGTHS = (5, 2, 7, 3, 4, 6, 1, 8)
PROMPT, GROUP, MINI_BATCH = 3, 4, 4
"""Tokens of a prompt, responses to one, responses of a mini-batch."""
VARIANT = {
    **{"worker": "verl", "dtype": "float64", "gradient_checkpointing": False, "lora_rank": 0, "terms": "all"},
    **{"n": GROUP, "learning_rate": 1e-2},
}
ORDER = {1: [[*range(8)]], 2: [[0, 1, 4, 5], [2, 3, 6, 7]]}
"""Number of ranks → the responses of each, those of the first mini-batch first."""


def responses() -> list[fsdp2_ranks.Row]:
    """Eight responses, as verl's trainer hands them to its workers."""
    generator = torch.Generator().manual_seed(5)

    def row(length: int) -> fsdp2_ranks.Row:
        tokens = torch.randint(1, 23, (PROMPT + length,), generator=generator)
        ones = torch.ones(length, dtype=torch.int64)
        noise = torch.randn(length, generator=generator, dtype=torch.float64)
        return {
            "input_ids": tokens,
            "attention_mask": torch.ones_like(tokens),
            "position_ids": torch.arange(len(tokens)),
            **{"prompts": tokens[:PROMPT], "responses": tokens[PROMPT:]},
            **{"response_mask": ones, "loss_mask": ones},
            "old_log_probs": 0.2 * noise - 3,
            "advantages": noise[:1].sign().expand(length).clone(),
        }

    return [row(length) for length in LENGTHS]


def answer_for_accelerators() -> None:
    """Register verl's engine for the processor, and answer its calls on an accelerator's module.

    verl >= 0.9 has platforms, of which the package has one.
    """
    from verl.utils import device, distributed

    from grpo_verl_ext.verl_plugin.cpu import patches

    if hasattr(device, "get_platform"):
        return
    processor = types.SimpleNamespace(
        **{name: getattr(torch.cpu, name) for name in dir(torch.cpu) if not name.startswith("_")},
        **dict.fromkeys(("memory_allocated", "memory_reserved"), lambda *_: 0),
        **dict.fromkeys(("max_memory_allocated", "max_memory_reserved"), lambda *_: 0),
        mem_get_info=lambda *_: (1, 1),
        empty_cache=lambda: None,
        get_device_name=lambda *_: "cpu",
        manual_seed=torch.manual_seed,
        get_rng_state=torch.get_rng_state,
        set_rng_state=torch.set_rng_state,
    )
    device.get_torch_device = lambda: processor
    patches.patch_process_group(distributed)
    import grpo_verl_ext.verl_plugin.cpu.engines  # noqa: F401


def run_rank(rank: int, size: int, port: int, folder: str) -> None:
    """Train once for each loss; rank 0 keeps the parameters."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK="0", MASTER_ADDR="127.0.0.1")
    os.environ.update(MASTER_PORT=str(port), VERL_USE_EXTERNAL_MODULES="grpo_verl_ext.plugin")
    torch.set_num_threads(1)
    answer_for_accelerators()
    from verl.workers.utils.losses import ppo_loss

    variant = {**VARIANT, "micro_batch": MINI_BATCH if size == 1 else 1}
    extra = {"temperature": 1.0, "calculate_entropy": False, "compute_loss": True, "epochs": 1, "seed": 0}
    extra |= {"global_batch_size": MINI_BATCH, "mini_batch_size": MINI_BATCH, "max_response_length": 8}
    extra |= {"dataloader_kwargs": {"shuffle": False}, "distillation_use_topk": False}
    rows, found = responses(), {}
    for loss in LOSSES:
        with fsdp2_ranks.in_precision("float64"):
            worker = fsdp2_ranks.make_worker(f"{folder}/model", variant)
            worker.reset()
            worker.engine._autocast_dtype = torch.float32  # verl's word for "no autocast"
            config = fsdp2_ranks.actor_config({"beta": 0.1, "n": GROUP}, {**variant, "loss": loss})
            object.__setattr__(config, "loss_scale_factor", 8)
            worker.set_loss_fn(partial(ppo_loss, config=config))
            start = fsdp2_ranks.parameters_of(worker)
            mine = [rows[i] for i in ORDER[size][rank]]
            worker.train_mini_batch(fsdp2_ranks.batch_of(mine, extra))
            found[loss] = (start, fsdp2_ranks.parameters_of(worker))
    if rank == 0:
        torch.save(found, f"{folder}/{size}.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def differences(folder: str) -> dict[str, float]:
    """Return the largest difference of a loss's parameters, beside the largest change of the two updates."""
    fsdp2_ranks.tiny_model().save_pretrained(f"{folder}/model")
    for size in ORDER:
        (port,) = free_ports(1)
        torch.multiprocessing.spawn(run_rank, (size, port, folder), size)
    one, two = (torch.load(f"{folder}/{size}.pt", weights_only=False) for size in ORDER)

    def largest(a: dict[str, Any], b: dict[str, Any]) -> float:
        return max(float((a[name] - b[name]).abs().max()) for name in a)

    return {loss: largest(one[loss][1], two[loss][1]) / largest(*one[loss]) for loss in LOSSES}


if __name__ == "__main__":
    with TemporaryDirectory() as made:
        for name, difference in differences(made).items():
            print(f"{name} {difference:.1e}")
