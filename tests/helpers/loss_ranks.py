"""Run a small policy on two gloo processes, which import this module by name."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from group_rows import at_first_update
from torch import Tensor

from grpo_verl_ext import catalogue
from grpo_verl_ext.catalogue import mode_of
from grpo_verl_ext.verl_plugin import wire
from grpo_verl_ext.verl_plugin.algorithms import LOSS_FUNCTIONS

ROWS, WIDTH, VOCABULARY, FEATURES = 8, 5, 7, 3
LENGTHS = (5, 1, 3, 2, 5, 4, 0, 1)
PARTS = (([0, 3], [5, 6]), ([1], [2, 4, 7]))
"""For each rank its micro-batches."""


def policy() -> torch.nn.Module:
    """A linear map from features to logits, the same in every process."""
    torch.manual_seed(0)
    return torch.nn.Linear(FEATURES, VOCABULARY, dtype=torch.float64)


def responses() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return {
        "features": normal(ROWS, WIDTH, FEATURES),
        "tokens": torch.randint(VOCABULARY, (ROWS, WIDTH, 1), generator=generator),
        "old_log_prob": 0.3 * normal(ROWS, WIDTH) - 2,
        "advantages": normal(ROWS, 1).expand(ROWS, WIDTH),
        "response_mask": torch.arange(WIDTH) < torch.tensor(LENGTHS).unsqueeze(-1),
    }


class Config(dict[str, Any]):
    """What the losses read of verl's ActorConfig, which is a mapping with attributes too."""

    __getattr__ = dict.__getitem__


def actor_config(name: str, dp_size: int) -> Config:
    return Config(
        loss_agg_mode=mode_of(catalogue.LOSSES[name]),
        loss_scale_factor=WIDTH,
        clip_ratio=0.2,
        clip_ratio_low=0.2,
        clip_ratio_high=0.28,
        clip_ratio_c=3.0,
        policy_loss={"gvpo_beta": 0.1, "gvpo_terms": "all"},
        rollout_n=4,
        use_dynamic_bsz=True,
        global_batch_info={"dp_size": dp_size, "batch_num_tokens": sum(LENGTHS), "global_batch_size": ROWS},
    )


NAMES = [
    name
    for name, loss in catalogue.LOSSES.items()
    if isinstance(loss, catalogue.GroupLoss) or loss.needs is None
]
"""Losses that need no statistic; the worker that measures one has tests of its own."""


def gradient(name: str, parts: Sequence[list[int]], dp_size: int) -> Tensor:
    """Of the weights, summed over micro-batches, in this process."""
    model, batch, config = policy(), responses(), actor_config(name, dp_size)
    for part in parts:
        own = {key: value[part] for key, value in batch.items()}
        logits = model(own.pop("features")).log_softmax(-1)
        log_prob = logits.gather(-1, own.pop("tokens")).squeeze(-1)
        with wire.GROUPS.set(at_first_update(len(part), config.rollout_n)):
            LOSS_FUNCTIONS[name](log_prob=log_prob, config=config, **own)[0].backward()
    return model.weight.grad


def run_rank(rank: int, world_size: int, folder: str) -> None:
    """One process: for every loss the gradient averaged over the ranks, as FSDP does; rank 0 saves them.

    Plain all-reduce rather than DDP, whose reducer can deadlock with gloo's thread when a process ends.
    """
    store = dist.FileStore(str(Path(folder) / "store"), world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    gradients = {name: gradient(name, PARTS[rank], world_size) / world_size for name in NAMES}
    for share in gradients.values():
        dist.all_reduce(share)
    if rank == 0:
        torch.save(gradients, Path(folder) / "gradients.pt")
    dist.barrier()
    dist.destroy_process_group()
