"""Compute log-probs of rows by verl's real FSDP2 worker on gloo processes, as its actor does.

A module of its own, so that processes can import it. Rank r reads its rows from ``job.pt`` and writes
``rank-<r>.pt``: the log-probs of each row, as verl's actor writes them to TransferQueue.
"""

import os
from pathlib import Path
from typing import Any

import torch
from fsdp2_ranks import batch_of

SINGLE = dict.fromkeys(("param_dtype", "reduce_dtype", "buffer_dtype"), "fp32")


def run_rank(rank: int, folder: Path) -> None:
    from verl.utils import tensordict_utils as tu

    torch.set_num_threads(1)
    os.environ["RANK"] = str(rank)
    job = torch.load(folder / "job.pt", weights_only=False)
    worker = make_worker(job["model"], job["micro_batch"])
    worker.reset()
    output = worker.infer_batch(batch_of(job["ranks"][rank], job["extra_info"]))
    torch.save([row.clone() for row in tu.get(output, "log_probs").unbind()], folder / f"rank-{rank}.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def make_worker(model: str, micro_batch: int) -> Any:
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig, TrainingWorkerConfig
    from verl.workers.engine_workers import TrainingWorker

    return TrainingWorker(
        TrainingWorkerConfig(
            model_type="language_model",
            model_config=HFModelConfig(
                path=model,
                load_tokenizer=False,
                use_remove_padding=False,
                override_config={"attn_implementation": "sdpa"},
                enable_gradient_checkpointing=False,
            ),
            engine_config=FSDPEngineConfig(
                strategy="fsdp2",
                model_dtype="fp32",
                mixed_precision=SINGLE,
                use_torch_compile=False,
                use_dynamic_bsz=False,
                infer_micro_batch_size_per_gpu=micro_batch,
            ),
            optimizer_config=FSDPOptimizerConfig(lr=1e-3),
            checkpoint_config=CheckpointConfig(),
        )
    )
