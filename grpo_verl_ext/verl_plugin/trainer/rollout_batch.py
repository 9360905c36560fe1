"""Read and write fields of a rollout batch, whose keys verl's trainer has and whose rows TransferQueue."""

from typing import Any

import torch
import transfer_queue as tq
from tensordict import TensorDict
from torch import Tensor


def prompt_ids(batch: Any) -> list[str]:
    """Return the prompt id of each row; verl's keys are ``{uid}_{session}_{index}``."""
    return [key.rsplit("_", 2)[0] for key in batch.keys]


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
    """Write fields back, one entry for each row."""
    return tq.kv_batch_put(
        keys=batch.keys, partition_id=batch.partition_id, fields=TensorDict(fields, batch_size=len(batch))
    )
