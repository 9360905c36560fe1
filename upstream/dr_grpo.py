"""Print how far verl's gradient for Dr. GRPO, by its default for the constant, is from the paper's."""

import torch
from hydra import compose, initialize_config_module
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.workers.config import ActorConfig
from verl.workers.utils.losses import ppo_loss
from verl.workers.utils.padding import left_right_2_no_padding

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
print(f"actor.loss_scale_factor is {default} by default, with data.max_response_length={BUDGET}")
paper = gradient(v1_layout(), BUDGET, 8)
for name, layout in (("v1", v1_layout), ("legacy", legacy_layout)):
    for size in (8, 2, 1):
        far = float((gradient(layout(), default, size) - paper).norm() / paper.norm())
        print(f"{name} trainer, micro-batches of {size}: the gradient is off by {far:.0%}")
