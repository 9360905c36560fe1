#!/usr/bin/env bash
# One expects: gradients of micro-batches add up to that of the mini-batch.
# verl 0.9.1: the loss `geo_mean` (GMPO) is a mean over the responses of each micro-batch, and the engine adds
# micro-batches without weights: k micro-batches train with k times the gradient. Issue #7913, pull requests
# #5614 and #7916 (open). Adam hides it, gradient clipping and unequal micro-batches do not.
set -euo pipefail
# shellcheck source=findings/venv.bash
source "$(dirname "$0")/venv.bash" verl==0.9.1 torch==2.13.0 tensordict==0.10.0 transformers==5.10.4 ray==2.60.0
"$place/venv/bin/python" -W ignore - 2> "$place/stderr" << 'PYTHON' || { tail -5 "$place/stderr" >&2; exit 1; }
import sys
import torch
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.workers.config import ActorConfig

SEEN = [
    '8 responses in micro-batches of 4: the gradient changes by 100%',
    '8 responses in micro-batches of 2: the gradient changes by 300%',
    '8 responses in micro-batches of 1: the gradient changes by 700%',
]
seen = []

ROWS = 8
torch.manual_seed(0)
LENGTHS = torch.randint(50, 1001, (ROWS,))
MASK = torch.arange(1000) < LENGTHS[:, None]
OLD = -torch.rand(ROWS, 1000, dtype=torch.float64)
ADVANTAGES = torch.randn(ROWS, 1, dtype=torch.float64) * MASK


def gradient(rows_per_micro_batch: int) -> torch.Tensor:
    """Return that of the mini-batch, micro-batch by micro-batch."""
    config = ActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1)
    config.global_batch_info.update(dp_size=1, global_batch_size=ROWS, batch_num_tokens=int(MASK.sum()))
    log_prob = (OLD + 0.01).requires_grad_()
    for rows in torch.arange(ROWS).split(rows_per_micro_batch):
        loss, _ = get_policy_loss_fn("geo_mean")(
            old_log_prob=OLD[rows],
            log_prob=log_prob[rows],
            advantages=ADVANTAGES[rows],
            response_mask=MASK[rows],
            config=config,
        )
        loss.backward()
    assert log_prob.grad is not None
    return log_prob.grad


whole = gradient(ROWS)
for size in (4, 2, 1):
    change = float((gradient(size) - whole).norm() / whole.norm())
    seen.append(f"{ROWS} responses in micro-batches of {size}: the gradient changes by {change:.0%}")

print("\n".join(seen))
sys.exit(seen != SEEN)
PYTHON
