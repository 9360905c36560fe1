"""The rows of a TransferQueue in this process, for tests of the trainer."""

from typing import Any

import fsdp2_ranks
from tensordict import TensorDict
from transfer_queue import KVBatchMeta


class Store:
    """What the trainer uses of TransferQueue, in this process."""

    def __init__(self) -> None:
        self.rows: dict[str, fsdp2_ranks.Row] = {}

    def kv_batch_get(self, keys: list[str], partition_id: str, select_fields: Any = None) -> TensorDict:
        rows = [self.rows[key] for key in keys]
        names = [name for name in select_fields or rows[0] if all(name in row for row in rows)]
        return fsdp2_ranks.batch_of([{name: row[name] for name in names} for row in rows], {})

    def kv_batch_put(
        self, keys: list[str], partition_id: str, fields: TensorDict | None = None, tags: Any = None
    ) -> KVBatchMeta:
        for i, key in enumerate(keys):
            row = self.rows.setdefault(key, {})
            row.update({name: fields[name][i] for name in fields.keys()})  # noqa: SIM118
        return KVBatchMeta(partition_id=partition_id, keys=list(keys), tags=tags or [{} for _ in keys])
