#!/usr/bin/env bash
# One expects: `adv_estimator=gdpo`, which has an example script, trains in verl's default trainer.
# verl 0.9.1: after the first rollout, of which nothing is kept, the v1 trainer ends with a KeyError: the estimator
# looks for prompts and single rewards in what only the older trainer passes. Pull request #7473 (open) passes a part.
# It matters since a whole batch is generated before the error.
set -euo pipefail
# shellcheck source=findings/venv.bash
source "$(dirname "$0")/venv.bash" verl==0.9.1 torch==2.13.0 tensordict==0.10.0 transformers==5.10.4 ray==2.60.0 cachetools==8.0.0 fastapi==0.136.3 uvicorn==0.51.0 TransferQueue==0.1.11
"$place/venv/bin/python" -W ignore - 2> "$place/stderr" << 'PYTHON' || { tail -5 "$place/stderr" >&2; exit 1; }
import sys
from types import SimpleNamespace
from typing import Any

SEEN = [
    'key "prompts" not found in Tensor',
]
seen = []

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
    """Take what goes back."""
    seen.append("it has advantages")


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
    seen.append(str(missing.args[0])[:33])

print("\n".join(seen))
sys.exit(seen != SEEN)
PYTHON
