"""Print by how much the gradient of verl's geo_mean changes when a mini-batch is split."""

import torch
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.workers.config import ActorConfig

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
    print(f"{ROWS} responses in micro-batches of {size}: the gradient changes by {change:.0%}")
