"""Run GVPO's updates under FSDP1: `fsdp2_ranks` with verl's other sharding engine.

FSDP1 hides gradients in flat parameters, so rank 0 writes the metrics of every update; each depends on the
parameters made by the updates before it.
"""

from functools import partial
from pathlib import Path
from typing import Any

import fsdp2_ranks
import torch
from torch.distributed.fsdp import FullyShardedDataParallel


class OnHost(FullyShardedDataParallel):
    """Without sync_module_states, which refuses a model on the CPU; every rank has the same one."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{**options, "sync_module_states": False})

    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """FSDP1 takes the norm in single precision alone; the limit of these tests is out of reach."""
        return torch.zeros(())


def train(
    job: dict[str, Any], variant: dict[str, Any], rows: list[fsdp2_ranks.Row], extra: dict[str, Any]
) -> dict[str, Any]:
    """All updates on the batch of one rollout."""
    from verl.utils import tensordict_utils as tu
    from verl.workers.utils.losses import ppo_loss

    worker = fsdp2_ranks.make_worker(job["model"], variant)
    worker.reset()
    worker.engine._autocast_dtype = torch.float32  # verl's word for "no autocast"; there is none to float64
    worker.set_loss_fn(partial(ppo_loss, config=fsdp2_ranks.actor_config(job, variant)))
    output = worker.train_mini_batch(fsdp2_ranks.batch_of(rows, extra))
    return {"engine": type(worker.engine.module).__name__, "metrics": tu.get(output, key="metrics")}


def run_rank(rank: int, folder: Path) -> None:
    """One rank, in double precision."""
    from verl.utils.torch_dtypes import PrecisionType
    from verl.workers import config
    from verl.workers.engine import EngineRegistry
    from verl.workers.engine.fsdp import transformer_impl

    transformer_impl.FSDP = OnHost
    EngineRegistry.register(model_type="language_model", backend=["fsdp"], device="cpu")(
        transformer_impl.FSDPEngineWithLMHead
    )
    whole = config.FSDPEngineConfig
    config.FSDPEngineConfig = lambda **settings: whole(**settings | {"strategy": "fsdp"})
    PrecisionType.to_dtype = staticmethod(lambda precision: torch.float64)
    fsdp2_ranks.run_variants(train, rank, folder)
