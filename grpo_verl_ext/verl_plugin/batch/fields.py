"""What the features' trainers share: fields of a rollout batch, folder in a checkpoint.

A batch is verl's KVBatchMeta: the trainer has the keys of the rows, and TransferQueue the rows.
"""

from pathlib import Path
from typing import Any

import torch
import transfer_queue as tq
from tensordict import TensorDict
from torch import Tensor
from verl.utils import tensordict_utils as tu

from grpo_verl_ext.verl_plugin.wire import Field


def prompt_ids(batch: Any) -> list[str]:
    """Return the prompt id of each row; verl's keys are ``{uid}_{session}_{index}``."""
    return [key.rsplit("_", 2)[0] for key in batch.keys]


def are_responses(batch: Any) -> list[bool]:
    """Return which rows are responses, and not the padding with which verl fills a batch."""
    return [not tag.get("is_padding", False) for tag in batch.tags]


def were_sampled(batch: Any, rows: TensorDict) -> list[bool]:
    """Return which rows, with these ``extra_fields``, are neither padding nor stored responses."""
    pairs = zip(are_responses(batch), tu.get(rows, "extra_fields"), strict=True)
    return [is_response and not extra.get(Field.STORED_ORIGIN) for is_response, extra in pairs]


def nested(batch: Any, *fields: str) -> TensorDict:
    """Return fields of the rows, ragged as stored."""
    return tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=list(fields))


def like(rows: Any, values: Tensor) -> Tensor:
    """Return a nested tensor of the values, (N,), with the row lengths of the nested tensor ``rows``.

    Without the minimal and maximal length torch would pad it to a width of N.
    """
    lengths = rows.offsets().diff()
    return torch.nested.nested_tensor_from_jagged(
        values, rows.offsets(), min_seqlen=int(lengths.min()), max_seqlen=int(lengths.max())
    )


def put(batch: Any, fields: dict[str, Tensor]) -> Any:
    """Write fields of a feature's trainer into the batch, one entry for each row."""
    return tq.kv_batch_put(
        keys=batch.keys, partition_id=batch.partition_id, fields=TensorDict(fields, batch_size=len(batch))
    )


def data_parallel_size(worker_group: Any) -> int:
    """Return into how many parts verl cuts a batch for the actor's ranks."""
    known: dict[str, list[int]] = worker_group._dispatch_info
    if "actor" not in known:
        known["actor"] = worker_group._query_dispatch_info("actor")
    return max(known["actor"]) + 1


def actor_folder(trainer: Any) -> Path:
    """Return the actor's folder in the checkpoint of a step; verl removes it with old checkpoints."""
    settings, name = trainer.config.trainer, f"global_step_{trainer.global_steps}"
    if settings.resume_mode == "resume_path" and name in settings.resume_from_path:
        return Path(settings.resume_from_path).absolute() / "actor"
    return (Path(settings.default_local_dir) / name).absolute() / "actor"
