#!/usr/bin/env bash
# One expects: DAPO's filter of groups drops each prompt whose responses all have the same metric.
# verl 0.9.1: `ReplayBuffer._dapo_filtered_keys` asks whether `np.std` is 0. The mean of equal fractions is rounded, so that
# of 2 to 32 times 0.1, 0.2 ... 0.9 half are kept (149 of 279): the deviation of six times 0.7 is 1.1e-16.
# Their advantage is 0, or with verl's `grpo` that of `verl_grpo_equal_rewards.sh`, and their tokens count in a token mean.
set -euo pipefail
# shellcheck source=findings/venv.bash
source "$(dirname "$0")/venv.bash" verl==0.9.1 torch==2.13.0 tensordict==0.10.0 transformers==5.10.4 ray==2.60.0 cachetools==8.0.0 fastapi==0.136.3 uvicorn==0.51.0 TransferQueue==0.1.11
"$place/venv/bin/python" -W ignore - 2> "$place/stderr" << 'PYTHON' || { tail -5 "$place/stderr" >&2; exit 1; }
import sys
from types import SimpleNamespace

from verl.trainer.ppo.v1 import replay_buffer

SEEN = ["six times 1: dropped", "six times 0.7: kept", "eight times 0.7: dropped"]


def dropped(value: float, size: int) -> str:
    """Say what verl's filter does with a group of responses that all have this metric."""
    rows = {f"prompt_{number}_0": {"reward_extra_info": {"acc": value}} for number in range(size)}
    replay_buffer.tq = SimpleNamespace(kv_batch_get=lambda keys, **_: {"extra_fields": [rows[key] for key in keys]})
    buffer = object.__new__(replay_buffer.ReplayBuffer)
    buffer.filter_groups_metric, buffer._dapo_classification_cache = "acc", {"train": {}}
    buffer.finished_keys, buffer.partitions = {"train": {"prompt"}}, {"train": rows}
    return "dropped" if buffer._dapo_filtered_keys("train")[0] else "kept"


seen = [f"six times 1: {dropped(1.0, 6)}", f"six times 0.7: {dropped(0.7, 6)}", f"eight times 0.7: {dropped(0.7, 8)}"]
print("\n".join(seen))
sys.exit(seen != SEEN)
PYTHON
