"""The rows of a TransferQueue in this process, for tests of trainer and rollout."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import fsdp2_ranks
import pytest
from omegaconf import DictConfig
from tensordict import NonTensorData, TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo import padding_utils
from verl.trainer.ppo.v1 import trainer_base

from grpo_verl_ext.verl_plugin import trainer_modes
from grpo_verl_ext.verl_plugin.batch import fields
from grpo_verl_ext.verl_plugin.measure import trainer as measure


class Store:
    """What agent-loop worker and trainer use of TransferQueue."""

    def __init__(self) -> None:
        self.rows: dict[str, fsdp2_ranks.Row] = {}
        self.tags: dict[str, dict[str, Any]] = {}
        self.cleared: list[str] = []

    async def async_kv_put(self, key: str, partition_id: str, tag: Mapping[str, Any]) -> None:
        self.tags.setdefault(key, {}).update(tag)

    async def async_kv_batch_put(self, **given: Any) -> None:
        self.kv_batch_put(**given)

    def kv_batch_put(
        self, keys: list[str], partition_id: str, fields: TensorDict | None = None, tags: Any = None
    ) -> KVBatchMeta:
        for i, key in enumerate(keys):
            for name in fields.keys() if fields is not None else ():
                value = fields.get(name)[i]
                value = value.data if isinstance(value, NonTensorData) else value
                self.rows.setdefault(key, {})[name] = value
            if tags:
                self.tags.setdefault(key, {}).update(tags[i])
        return self.batch(keys, partition_id)

    def kv_batch_get(self, keys: list[str], partition_id: str, select_fields: Any = None) -> TensorDict:
        rows = [self.rows[key] for key in keys]
        names = [name for name in select_fields or rows[0] if all(name in row for row in rows)]
        return fsdp2_ranks.batch_of([{name: row[name] for name in names} for row in rows], {})

    def kv_clear(self, keys: list[str], partition_id: str) -> None:
        for key in keys:
            del self.rows[key]
        self.cleared.append(partition_id)

    def batch(self, keys: list[str] | None = None, partition_id: str = "train") -> KVBatchMeta:
        """These rows, by default all, as verl's replay buffer returns them."""
        keys = [*(self.rows if keys is None else keys)]
        return KVBatchMeta(
            partition_id=partition_id, keys=keys, tags=[self.tags.get(key, {}) for key in keys]
        )


def trainer_with(
    monkeypatch: pytest.MonkeyPatch, store: Store, config: DictConfig, ranks: int = 1, **attributes: Any
) -> Any:
    """A trainer of this package as after verl's ``__init__``, with this store for its queue."""
    for module in (trainer_base, padding_utils, fields, measure):
        monkeypatch.setattr(module, "tq", store)
    trainer = object.__new__(trainer_modes.GroupTrainerSync)
    trainer.config, trainer.global_steps = config, 1
    trainer.use_critic = trainer.use_reference_policy = False
    trainer.tokenizer = SimpleNamespace(eos_token_id=0)
    trainer.actor_rollout_wg = SimpleNamespace(_dispatch_info={"actor": [*range(ranks)]})
    vars(trainer).update(attributes)
    return trainer
