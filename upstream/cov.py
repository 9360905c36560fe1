"""Print by how much the gradients of verl's kl_cov and clip_cov change when a mini-batch is split."""

from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from verl.utils import tensordict_utils as tu
from verl.workers.config import ActorConfig, FSDPEngineConfig, PolicyLossConfig
from verl.workers.engine_workers import TrainingWorker
from verl.workers.utils.losses import ppo_loss

ROWS, PROMPT = 16, 2
SHARES = {"kl_cov": 0.002, "clip_cov": 0.0002}  # the authors', as are the other values
torch.manual_seed(0)
LENGTHS = torch.randint(50, 1001, (ROWS,)).tolist()
LOG_PROBS = [-torch.empty(PROMPT + length, dtype=torch.float64).exponential_(2) for length in LENGTHS]
OLD = [row[PROMPT - 1 : -1] + 0.1 * torch.randn(len(row) - PROMPT, dtype=torch.float64) for row in LOG_PROBS]
ADVANTAGES = [torch.randn(1, dtype=torch.float64).expand(length) for length in LENGTHS]


class Engine:
    """What `TrainingWorker.train_batch` needs of an engine; the log-probs themselves are the parameters."""

    def __init__(self, rows_per_micro_batch: int) -> None:
        self.rows_per_micro_batch = rows_per_micro_batch
        self.log_probs = [row.clone().requires_grad_() for row in LOG_PROBS]

    def train_mode(self, **_: Any) -> nullcontext[None]:
        return nullcontext()

    eval_mode = train_mode

    def get_data_parallel_group(self) -> None:
        return None

    def is_mp_src_rank_with_outputs(self) -> bool:
        return False

    def output(self, rows: Tensor) -> dict[str, Tensor]:
        return {"log_probs": ragged([self.log_probs[row] for row in rows])}

    def infer_batch(self, data: TensorDict, loss_function: None = None) -> dict[str, Any]:
        return {"model_output": self.output(torch.arange(ROWS))}

    def train_batch(self, data: TensorDict, loss_function: Any) -> None:
        for rows in torch.arange(ROWS).split(self.rows_per_micro_batch):
            part = tu.index_select_tensor_dict(data, rows)
            tu.assign_non_tensor(part, dp_size=1, batch_num_tokens=sum(LENGTHS), global_batch_size=ROWS)
            loss_function(model_output=self.output(rows), data=part)[0].backward()


def ragged(rows: list[Tensor]) -> Tensor:
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def gradient(loss_mode: str, rows_per_micro_batch: int) -> Tensor:
    """Return that of the mini-batch, micro-batch by micro-batch."""
    options = PolicyLossConfig(loss_mode=loss_mode, ppo_kl_coef=1.0, **{f"{loss_mode}_ratio": SHARES[loss_mode]})
    config = ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        policy_loss=options,
        clip_ratio_low=1.0,
        clip_ratio_high=1.0,
    )
    worker = object.__new__(TrainingWorker)
    worker.engine, worker.engine_config, worker.model_config = (
        Engine(rows_per_micro_batch),
        FSDPEngineConfig(),
        {},
    )
    worker.loss_fn = partial(ppo_loss, config=config)
    fields = {
        "prompts": ragged([torch.ones(PROMPT, dtype=torch.long)] * ROWS),
        "responses": ragged([torch.ones(length, dtype=torch.long) for length in LENGTHS]),
        "response_mask": ragged([torch.ones(length, dtype=torch.long) for length in LENGTHS]),
        "old_log_probs": ragged(OLD),
        "advantages": ragged(ADVANTAGES),
    }
    worker.train_batch(TensorDict(fields, batch_size=ROWS))
    return torch.cat([row.grad for row in worker.engine.log_probs])


for loss_mode in SHARES:
    whole = gradient(loss_mode, ROWS)
    for size in (8, 4, 2, 1):
        change = float((gradient(loss_mode, size) - whole).norm() / whole.norm())
        print(f"{loss_mode}, {ROWS} responses in micro-batches of {size}: the gradient changes by {change:.1%}")
