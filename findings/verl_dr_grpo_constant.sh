#!/usr/bin/env bash
# One expects: `loss_agg_mode=seq-mean-token-sum-norm` divides by a constant, as in Dr. GRPO (arXiv 2503.20783).
# verl 0.9.1: `actor.loss_scale_factor` is null by default and the v1 trainer, the default one, divides each
# micro-batch by its own longest response: 8 to 165 % from the paper's gradient, and another loss at each cut.
# The trainer with `use_v1=false` pads to the budget, so there null was the constant. verl's DPPO example
# leaves it null, too. Issue #3741 (open).
set -euo pipefail
# shellcheck source=findings/venv.bash
source "$(dirname "$0")/venv.bash" verl==0.9.1 torch==2.13.0 tensordict==0.10.0 transformers==5.10.4 ray==2.60.0
"$place/venv/bin/python" -W ignore - 2> "$place/stderr" << 'PYTHON' || { tail -5 "$place/stderr" >&2; exit 1; }
import sys
import torch
from hydra import compose, initialize_config_module
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.workers.config import ActorConfig
from verl.workers.utils.losses import ppo_loss
from verl.workers.utils.padding import left_right_2_no_padding

SEEN = [
    'actor.loss_scale_factor is None by default, with data.max_response_length=1024',
    'v1 trainer, micro-batches of 8: the gradient is off by 8%',
    'v1 trainer, micro-batches of 2: the gradient is off by 113%',
    'v1 trainer, micro-batches of 1: the gradient is off by 165%',
    'legacy trainer, micro-batches of 8: the gradient is off by 0%',
    'legacy trainer, micro-batches of 2: the gradient is off by 0%',
    'legacy trainer, micro-batches of 1: the gradient is off by 0%',
]
seen = []

BUDGET, PROMPT = 1024, 2
torch.manual_seed(0)
LENGTHS = torch.randint(50, 1001, (8,))
OVERRIDES = [f"data.max_response_length={BUDGET}", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1"]


def v1_layout() -> TensorDict:
    """Return the rows as the v1 trainer passes them: ragged."""
    columns = {
        "prompts": [torch.ones(PROMPT, dtype=torch.long)] * 8,
        "responses": [torch.ones(length, dtype=torch.long) for length in LENGTHS],
        "response_mask": [torch.ones(length, dtype=torch.long) for length in LENGTHS],
        "old_log_probs": [torch.zeros(length, dtype=torch.float64) for length in LENGTHS],
        "advantages": [torch.ones(length, dtype=torch.float64) for length in LENGTHS],
    }
    ragged = {
        name: torch.nested.as_nested_tensor(rows, layout=torch.jagged) for name, rows in columns.items()
    }
    return TensorDict(ragged, batch_size=8)


def legacy_layout() -> TensorDict:
    """Return the rows as the trainer with ``trainer.use_v1=false`` passes them: padded to the budget."""
    mask = (torch.arange(BUDGET) < LENGTHS[:, None]).long()
    both = torch.cat([torch.ones(8, PROMPT, dtype=torch.long), mask], 1)
    columns = {
        "prompts": torch.ones(8, PROMPT, dtype=torch.long),
        "responses": torch.ones_like(mask),
        "response_mask": mask,
        "old_log_probs": torch.zeros(8, BUDGET, dtype=torch.float64),
        "advantages": mask.double(),
        "input_ids": torch.ones_like(both),
        "attention_mask": both,
        "position_ids": torch.arange(PROMPT + BUDGET).expand(8, -1),
    }
    padded: TensorDict = left_right_2_no_padding(TensorDict(columns, batch_size=8))
    return padded


def gradient(data: TensorDict, constant: int | None, rows_per_micro_batch: int) -> torch.Tensor:
    """Return that of the mini-batch by ``ppo_loss``, micro-batch by micro-batch."""
    config = ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        loss_agg_mode="seq-mean-token-sum-norm",
        loss_scale_factor=constant,
    )
    log_probs = [torch.zeros(PROMPT + length, dtype=torch.float64, requires_grad=True) for length in LENGTHS]
    for rows in torch.arange(8).split(rows_per_micro_batch):
        part = tu.index_select_tensor_dict(data, rows)
        tu.assign_non_tensor(part, dp_size=1, batch_num_tokens=int(LENGTHS.sum()), global_batch_size=8)
        ragged = torch.nested.as_nested_tensor([log_probs[row] for row in rows], layout=torch.jagged)
        ppo_loss(config, {"log_probs": ragged}, part)[0].backward()
    return torch.cat([row.grad for row in log_probs if row.grad is not None])


with initialize_config_module("verl.trainer.config", version_base=None):
    default = compose("ppo_trainer", OVERRIDES).actor_rollout_ref.actor.loss_scale_factor
seen.append(f"actor.loss_scale_factor is {default} by default, with data.max_response_length={BUDGET}")
paper = gradient(v1_layout(), BUDGET, 8)
for name, layout in (("v1", v1_layout), ("legacy", legacy_layout)):
    for size in (8, 2, 1):
        far = float((gradient(layout(), default, size) - paper).norm() / paper.norm())
        seen.append(f"{name} trainer, micro-batches of {size}: the gradient is off by {far:.0%}")

print("\n".join(seen))
sys.exit(seen != SEEN)
PYTHON
