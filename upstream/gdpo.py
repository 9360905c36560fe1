"""Print the advantages that verl's v1 trainer gives four responses with two rewards each under GDPO."""

from types import SimpleNamespace
from typing import Any

import torch
from omegaconf import OmegaConf
from tensordict import NonTensorData, NonTensorStack, TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1 import trainer_base

REPORTED = [{"accuracy": 0, "form": 10}, {"accuracy": 1, "form": 0}, {"accuracy": 0, "form": 0}]
REPORTED += [{"accuracy": 1, "form": 10}]


def kv_batch_get(select_fields: list[str], **_: Any) -> TensorDict:
    """Stand for the TransferQueue, with responses of one token."""
    ones = torch.nested.as_nested_tensor([torch.ones(1)] * 4, layout=torch.jagged)
    rows = TensorDict({"response_mask": ones.long(), "rm_scores": ones}, batch_size=4)
    rows["uid"] = NonTensorStack(*(NonTensorData("a") for _ in range(4)))
    rows["extra_fields"] = NonTensorStack(*(NonTensorData({"reward_extra_info": each}) for each in REPORTED))
    return rows.select(*(name for name in select_fields if name in rows.keys()))  # noqa: SIM118


def kv_batch_put(fields: TensorDict, **_: Any) -> None:
    """Print what goes back."""
    print("advantages:", [round(float(row), 2) for row in fields["advantages"].values()])


trainer_base.tq = SimpleNamespace(kv_batch_get=kv_batch_get, kv_batch_put=kv_batch_put)
algorithm = {"adv_estimator": "gdpo", "gdpo_reward_keys": ["accuracy", "form"], "use_kl_in_reward": False}
config = {
    "algorithm": {**algorithm, "gamma": 1.0, "lam": 1.0},
    "actor_rollout_ref": {"rollout": {"n": 4}},
}
batch = KVBatchMeta(keys=[f"a_{row}_0" for row in range(4)], partition_id="train", tags=[{}] * 4)
try:
    trainer_base.PPOTrainer._compute_advantage(SimpleNamespace(config=OmegaConf.create(config)), batch, {})
except KeyError as missing:
    print("KeyError:", missing)
