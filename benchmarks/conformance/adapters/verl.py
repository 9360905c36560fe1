"""verl: its workers' ``ppo_loss`` on nested tensors, with the counts that its engine and trainer pass."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from tensordict import TensorDict
from torch import Tensor
from verl.trainer.ppo.core_algos import compute_gdpo_outcome_advantage
from verl.utils import tensordict_utils as tu
from verl.workers.config import ActorConfig, PolicyLossConfig
from verl.workers.utils.losses import ppo_loss

from benchmarks.conformance.adapter import Row, StandIn, Task
from benchmarks.conformance.adapters.torch_ranks import MicroBatch, accumulated, start_ranks
from benchmarks.conformance.batch import CUTS, GROUP_SIZE, MAX_RESPONSE_LENGTH, REWARDS, Batch, Floats, Rows
from benchmarks.conformance.oracle import CLIP_COV, KL_COV_SHARE

TITLE = "verl"
DISTRIBUTION = "verl"
BESIDE = ("torch", "tensordict")
SOURCES = (
    "verl/workers/utils/losses.py",
    "verl/trainer/ppo/core_algos.py",
    "verl/workers/utils/padding.py",
    "verl/workers/engine/fsdp/transformer_impl.py",
)
HAS_K3_LOSS = True
STAND_INS = (
    StandIn(
        "verl/workers/engine/fsdp/transformer_impl.py",
        'batch_num_tokens = data["loss_mask"].sum().to(get_device_id())',
        "tokens of the mini-batch, summed over ranks by gloo",
    ),
    StandIn("verl/trainer/ppo/v1/trainer_base.py", '"global_batch_size": ppo_mini_batch_size,', "B = 16"),
    StandIn("verl/workers/engine/fsdp/transformer_impl.py", "loss.backward()", "loss.backward()"),
)

_NORM = {"loss_agg_mode": "seq-mean-token-sum-norm"}
_TOKEN_MEAN: dict[str, Any] = {"loss_agg_mode": "token-mean"}
_SEQUENCE_MEAN: dict[str, Any] = {"loss_agg_mode": "seq-mean-token-mean"}
_CONSTANT: dict[str, Any] = _NORM | {"loss_scale_factor": MAX_RESPONSE_LENGTH}
_NO_TRUNCATION = {"clip_ratio_c": 10000.0}
_CALLED_REASONABLE = (
    "null, the default: the micro-batch's own width; verl #5417 calls it “a reasonable design”"
)
_PER_MICRO_BATCH = (
    "means and share are the micro-batch's own (verl #{}), which the method's authors call an approximation "
    "(PRIME-RL/Entropy-Mechanism-of-RL #20)"
)

CUTS = tuple(CUTS)
NO_MODE: dict[str, str] = {}
ROWS = (
    Row("grpo", "loss_agg_mode=seq-mean-token-mean", _SEQUENCE_MEAN),
    Row("dapo", "loss_agg_mode=token-mean (default)", _TOKEN_MEAN),
    Row(
        "dr_grpo",
        "seq-mean-token-sum-norm, loss_scale_factor=null (default)",
        _NORM,
        _CALLED_REASONABLE,
        True,
    ),
    Row(
        "dr_grpo",
        "seq-mean-token-sum-norm, loss_scale_factor=L",
        _CONSTANT,
    ),
    Row(
        "gspo",
        "loss_mode=gspo, token-mean (default)",
        _TOKEN_MEAN | {"loss_mode": "gspo"},
        "it averages as the key says",
    ),
    Row("gspo", "loss_mode=gspo, seq-mean-token-mean", _SEQUENCE_MEAN | {"loss_mode": "gspo"}),
    Row(
        "cispo",
        "loss_mode=cispo, token-mean",
        _TOKEN_MEAN | {"loss_mode": "cispo"},
        "ε_high 0.5 is a clip at 1.5",
    ),
    Row(
        "dppo",
        "loss_mode=dppo_tv, clip_ratio=0.15, token-mean (default)",
        _TOKEN_MEAN | {"loss_mode": "dppo_tv"},
        "ρ is truncated at 3, the default of `clip_ratio_c`; none is as large here",
    ),
    Row(
        "dppo",
        "loss_mode=dppo_tv, clip_ratio=0.15, seq-mean-token-sum-norm, loss_scale_factor=L",
        _CONSTANT | _NO_TRUNCATION | {"loss_mode": "dppo_tv"},
    ),
    Row(
        "dppo_kl",
        "loss_mode=dppo_kl, clip_ratio=0.05, seq-mean-token-sum-norm, loss_scale_factor=L",
        _CONSTANT | _NO_TRUNCATION | {"loss_mode": "dppo_kl"},
    ),
    Row(
        "clip_cov",
        "loss_mode=clip_cov, token-mean, clip_cov_ratio=1",
        _TOKEN_MEAN
        | {"loss_mode": "clip_cov"}
        | {"clip_cov_ratio": 1.0, "clip_cov_lb": CLIP_COV[0], "clip_cov_ub": CLIP_COV[1]},
        _PER_MICRO_BATCH.format(7829),
        control=True,
    ),
    Row(
        "kl_cov",
        f"loss_mode=kl_cov, token-mean, kl_cov_ratio={KL_COV_SHARE}, ppo_kl_coef=1",
        _TOKEN_MEAN | {"loss_mode": "kl_cov", "kl_cov_ratio": KL_COV_SHARE, "ppo_kl_coef": 1.0},
        _PER_MICRO_BATCH.format(7830),
        control=True,
    ),
)


ESTIMATORS = (
    Row(
        "gdpo",
        "adv_estimator=gdpo",
        note="its second mean and standard deviation are over tokens (verl #6497)",
    ),
)


def advantages(_: Row, batch: Batch) -> Floats:
    keys = ["first", "second"]
    found, _ = compute_gdpo_outcome_advantage(
        on_last_token(REWARDS.sum(1), batch),
        torch.tensor(batch.mask),
        index=prompt_ids(batch),
        config={"gdpo_reward_keys": keys},
        non_tensor_batch=dict(zip(keys, REWARDS.T, strict=True)),
        batch={
            "prompts": torch.zeros(len(batch), 1),
            "attention_mask": torch.cat(
                [torch.ones(len(batch), 1), torch.tensor(batch.present)], dim=1
            ).long(),
        },
    )
    return found[:, 0].numpy()


def on_last_token(rewards: Floats, batch: Batch) -> Tensor:
    """Put the reward of each response on its last token, (B, T)."""
    found = torch.zeros(batch.mask.shape, dtype=torch.float64)
    found[range(len(batch)), [length - 1 for length in batch.lengths]] = torch.tensor(rewards)
    return found


def prompt_ids(batch: Batch) -> NDArray[np.object_]:
    """Return the name of each row's prompt."""
    return np.array([f"prompt {row // GROUP_SIZE}" for row in range(len(batch))], dtype=object)


def gradient(task: Task) -> Floats:
    return through_ppo_loss(task, PolicyLossConfig)


def _alone(config: ActorConfig, rows: Rows, width: int) -> AbstractContextManager[Any]:  # noqa: ARG001
    return nullcontext()


def through_ppo_loss(
    task: Task,
    policy_loss: type[PolicyLossConfig],
    around: Callable[[ActorConfig, Rows, int], AbstractContextManager[Any]] = _alone,
) -> Floats:
    """Return the gradient through verl's own path for a loss registered with it.

    Args:
        around: configuration, rows and width of a micro-batch → what holds while its loss is called.
    """
    start_ranks()
    known = {field.name for field in fields(policy_loss)}
    of_loss = {name: value for name, value in task.row.options.items() if name in known}
    of_actor = {name: value for name, value in task.row.options.items() if name not in known}
    config = ActorConfig(
        strategy="fsdp",
        rollout_n=task.group_size,
        ppo_micro_batch_size_per_gpu=1,
        policy_loss=policy_loss(**of_loss),
        clip_ratio_low=task.clip_low,
        clip_ratio_high=task.clip_high,
        use_kl_loss=task.kl_coef > 0,
        kl_loss_coef=task.kl_coef,
        kl_loss_type="low_var_kl",
        **of_actor,
    )

    def run(parts: list[MicroBatch]) -> None:
        num_tokens = sum(part.mask.sum() for part in parts)
        dist.all_reduce(num_tokens)
        for part, rows in zip(parts, task.micro_batches, strict=True):
            model_output, data = nested(part)
            counts = {"batch_num_tokens": num_tokens.item(), "global_batch_size": len(task.batch)}
            tu.assign_non_tensor(data, dp_size=task.world_size, **counts)
            with around(config, rows, part.mask.shape[1]):
                loss, _ = ppo_loss(config, model_output, data)
            loss.backward()

    return accumulated(task, run, trim=True)


def nested(part: MicroBatch) -> tuple[dict[str, Tensor], TensorDict]:
    """Return (model output, data) as verl's engine passes them: prompts of one token, no padding."""

    def rows(values: Tensor) -> Tensor:
        ragged = [row[:length] for row, length in zip(values, part.lengths, strict=True)]
        return torch.nested.as_nested_tensor(ragged, layout=torch.jagged)

    log_prob = [
        torch.cat([row[:n], row.new_zeros(1)]) for row, n in zip(part.log_prob, part.lengths, strict=True)
    ]
    prompts = [torch.zeros(1, dtype=torch.int64) for _ in part.lengths]
    data = {
        "prompts": torch.nested.as_nested_tensor(prompts, layout=torch.jagged),
        "responses": rows(torch.zeros_like(part.mask, dtype=torch.int64)),
        "response_mask": rows(part.mask.to(torch.int64)),
        "old_log_probs": rows(part.old_log_prob),
        "ref_log_prob": rows(part.ref_log_prob),
        "advantages": rows(part.advantages),
    }
    output = {"log_probs": torch.nested.as_nested_tensor(log_prob, layout=torch.jagged)}
    return output, TensorDict(data, batch_size=len(part.lengths))
