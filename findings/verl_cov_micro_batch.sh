#!/usr/bin/env bash
# One expects: how a mini-batch is cut into micro-batches, a setting for memory, leaves the gradient alone.
# verl 0.9.1: `kl_cov` and `clip_cov` rank and draw tokens within each micro-batch, so that their own part of
# the gradient changes by 50 to 294 % with the cut. Issues #7829, #7830 (open); the method's authors call it an
# approximation (PRIME-RL/Entropy-Mechanism-of-RL#20). It matters wherever memory decides the micro-batch.
set -euo pipefail
# shellcheck source=findings/venv.bash
source "$(dirname "$0")/venv.bash" verl==0.9.1 torch==2.13.0 tensordict==0.10.0 transformers==5.10.4 ray==2.60.0 cachetools==8.0.0 fastapi==0.136.3 uvicorn==0.51.0
"$place/venv/bin/python" -W ignore - 2> "$place/stderr" << 'PYTHON' || { tail -5 "$place/stderr" >&2; exit 1; }
import sys
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

SEEN = [
    '16 responses, 8393 tokens',
    'kl_cov, one micro-batch: 16 selected',
    'kl_cov, micro-batches of 8: 16 selected, change 1.8%, of its part 50%',
    'kl_cov, micro-batches of 4: 15 selected, change 2.9%, of its part 83%',
    'kl_cov, micro-batches of 2: 13 selected, change 3.9%, of its part 109%',
    'kl_cov, micro-batches of 1: 16 selected, change 4.7%, of its part 132%',
    'clip_cov, one micro-batch: 1 selected',
    'clip_cov, micro-batches of 8: 2 selected, change 2.0%, of its part 265%',
    'clip_cov, micro-batches of 4: 4 selected, change 1.9%, of its part 257%',
    'clip_cov, micro-batches of 2: 4 selected, change 2.2%, of its part 294%',
    'clip_cov, micro-batches of 1: 0 selected, change 0.8%, of its part 100%',
]
seen = []

import torch
from tensordict import TensorDict
from torch import Tensor
from verl.utils import tensordict_utils as tu
from verl.workers.config import ActorConfig, FSDPEngineConfig, PolicyLossConfig
from verl.workers.engine_workers import TrainingWorker
from verl.workers.utils.losses import ppo_loss

ROWS, PROMPT = 16, 2
OPTIONS = {  # the authors' values
    "kl_cov": {"kl_cov_ratio": 0.002, "ppo_kl_coef": 1.0},
    "clip_cov": {"clip_cov_ratio": 0.0002, "clip_cov_lb": 1.0, "clip_cov_ub": 5.0},
}
WITHOUT = {"kl_cov": {"ppo_kl_coef": 0.0}, "clip_cov": {"clip_cov_lb": 5.0}}
"""No token is penalized, none can be drawn."""
torch.manual_seed(0)
LENGTHS = torch.randint(50, 1001, (ROWS,)).tolist()
LOG_PROBS = [-torch.empty(PROMPT + length, dtype=torch.float64).exponential_(2) for length in LENGTHS]
OLD = [row[PROMPT - 1 : -1] + 0.1 * torch.randn(len(row) - PROMPT, dtype=torch.float64) for row in LOG_PROBS]
ADVANTAGES = [torch.randn(1, dtype=torch.float64).expand(length) for length in LENGTHS]


def ragged(rows: list[Tensor]) -> Tensor:
    """Return the rows as the v1 trainer passes them."""
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def gradient(loss_mode: str, rows_per_micro_batch: int, **options: float) -> Tensor:
    """Return that of the mini-batch by verl's worker; the log-probs themselves are the parameters."""
    log_probs = [row.clone().requires_grad_() for row in LOG_PROBS]

    def output(rows: Tensor) -> dict[str, Tensor]:
        return {"log_probs": ragged([log_probs[row] for row in rows])}

    def train_batch(data: TensorDict, loss_function: Any) -> None:
        for rows in torch.arange(ROWS).split(rows_per_micro_batch):
            part = tu.index_select_tensor_dict(data, rows)
            tu.assign_non_tensor(part, dp_size=1, batch_num_tokens=sum(LENGTHS), global_batch_size=ROWS)
            loss_function(model_output=output(rows), data=part)[0].backward()

    config = ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        policy_loss=PolicyLossConfig(loss_mode=loss_mode, **OPTIONS[loss_mode] | options),
        clip_ratio_low=1.0,
        clip_ratio_high=1.0,
    )
    worker = object.__new__(TrainingWorker)
    worker.engine_config, worker.model_config = FSDPEngineConfig(), {}
    worker.loss_fn = partial(ppo_loss, config=config)
    worker.engine = SimpleNamespace(
        train_mode=lambda **_: nullcontext(),
        eval_mode=lambda **_: nullcontext(),
        train_batch=train_batch,
        infer_batch=lambda _: {"model_output": output(torch.arange(ROWS))},
        get_data_parallel_group=lambda: None,
        is_mp_src_rank_with_outputs=lambda: False,
    )
    fields = {
        "prompts": ragged([torch.ones(PROMPT, dtype=torch.long)] * ROWS),
        "responses": ragged([torch.ones(length, dtype=torch.long) for length in LENGTHS]),
        "response_mask": ragged([torch.ones(length, dtype=torch.long) for length in LENGTHS]),
        "old_log_probs": ragged(OLD),
        "advantages": ragged(ADVANTAGES),
    }
    worker.train_batch(TensorDict(fields, batch_size=ROWS))
    return torch.cat([row.grad for row in log_probs if row.grad is not None])


seen.append(f"{ROWS} responses, {sum(LENGTHS)} tokens")
for loss_mode in OPTIONS:
    whole = gradient(loss_mode, ROWS)
    own_part = whole - gradient(loss_mode, ROWS, **WITHOUT[loss_mode])
    seen.append(f"{loss_mode}, one micro-batch: {own_part.count_nonzero()} selected")
    for size in (8, 4, 2, 1):
        split = gradient(loss_mode, size)
        selected = (split - gradient(loss_mode, size, **WITHOUT[loss_mode])).count_nonzero()
        change, of_own_part = ((split - whole).norm() / part.norm() for part in (whole, own_part))
        seen.append(f"{loss_mode}, micro-batches of {size}: {selected} selected, change {change:.1%}, of its part {of_own_part:.0%}")

print("\n".join(seen))
sys.exit(seen != SEEN)
PYTHON
