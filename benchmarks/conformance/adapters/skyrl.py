"""SkyRL: ``apply_loss_reduction_to_advantages_minibatch`` and the worker's ``_forward_backward_micro``."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.conformance.adapter import Row, StandIn, Task
from benchmarks.conformance.adapters.stubs import bare, stub
from benchmarks.conformance.adapters.torch_ranks import MicroBatch, accumulated
from benchmarks.conformance.batch import CUTS, GROUP_SIZE, REWARDS, Batch, Floats
from benchmarks.conformance.oracle import CLIP_COV, KL_COV_SHARE

for module in ("skyrl_gym", "skyrl_gym.envs", "skyrl_gym.envs.search", "skyrl_gym.envs.sql"):
    stub(module, __path__=[])  # the configuration names two of its environments, of which nothing is called
stub("skyrl_gym.envs.search.env", SearchEnvConfig=object)
stub("skyrl_gym.envs.sql.env", Text2SQLEnvConfig=object)

bare("skyrl.backends")  # its own imports the Tinker server, which needs Python 3.12
torch.cuda.current_device = lambda: "cpu"

from skyrl.backends.skyrl_train.utils.ppo_utils import (  # noqa: E402
    PolicyLossRegistry,
    apply_loss_reduction_to_advantages_minibatch,
    compute_maxrl_advantage,
)
from skyrl.backends.skyrl_train.workers.worker import PolicyWorkerBase  # noqa: E402
from skyrl.train.config import AlgorithmConfig, CISPOConfig, DPPOConfig  # noqa: E402
from skyrl.train.config.config import ClipCovConfig, KLCovConfig  # noqa: E402
from skyrl.train.dataset.replay_buffer import Experience  # noqa: E402

TITLE = "SkyRL"
DISTRIBUTION = "skyrl"
BESIDE = ("torch",)
SOURCES = (
    "skyrl/backends/skyrl_train/utils/ppo_utils.py",
    "skyrl/backends/skyrl_train/workers/worker.py",
    "skyrl/train/trainer.py",
)
HAS_K3_LOSS = True
STAND_INS = (
    StandIn(
        "skyrl/train/trainer.py",
        "apply_loss_reduction_to_advantages_minibatch(",
        "called with the same arguments for the one mini-batch",
    ),
    StandIn(
        "skyrl/backends/skyrl_train/workers/worker.py",
        "microbatch_weight = len(microbatch) / len(data)",
        "rows of the micro-batch over rows of the rank",
    ),
    StandIn(
        "skyrl/backends/skyrl_train/workers/worker.py",
        "self.strategy.backward(loss, self.model, self.optimizer)",
        "loss.backward()",
        after="# NOTE: The KL and entropy loss terms are not pre-scaled,",
    ),
)
_CONSTANT = {"loss_reduction": "seq_mean_token_sum_norm"}
CUTS = tuple(CUTS)
NO_MODE: dict[str, str] = {}
ROWS = (
    Row("grpo", "loss_reduction=sequence_mean", {"loss_reduction": "sequence_mean"}),
    Row("dapo", "loss_reduction=token_mean (default)", {"loss_reduction": "token_mean"}),
    Row("dapo", "loss_reduction=prompt_mean", {"loss_reduction": "prompt_mean"}),
    Row(
        "dapo",
        "loss_reduction=token_mean_legacy",
        {"loss_reduction": "token_mean_legacy"},
        "kept for old runs; equal micro-batches alone",
        True,
    ),
    Row(
        "dr_grpo",
        "loss_reduction=seq_mean_token_sum_norm, max_seq_len=L",
        _CONSTANT,
    ),
    Row(
        "gspo",
        "policy_loss_type=gspo, sequence_mean",
        {"policy_loss_type": "gspo", "loss_reduction": "sequence_mean"},
    ),
    Row(
        "cispo",
        "policy_loss_type=cispo, token_mean",
        {"policy_loss_type": "cispo", "loss_reduction": "token_mean"},
    ),
    Row(
        "dppo",
        "policy_loss_type=dppo, dppo.dppo_type=binary_tv, seq_mean_token_sum_norm, max_seq_len=L",
        _CONSTANT | {"policy_loss_type": "dppo"},
    ),
    Row(
        "dppo_kl",
        "policy_loss_type=dppo, dppo.dppo_type=binary_kl, seq_mean_token_sum_norm, max_seq_len=L",
        _CONSTANT | {"policy_loss_type": "dppo"},
    ),
    Row(
        "clip_cov",
        "policy_loss_type=clip_cov, token_mean, clip_cov.clip_ratio=1",
        {"policy_loss_type": "clip_cov"},
        "advantages are divided by N before the loss, so that no covariance reaches ω_low: none is dropped",
    ),
    Row(
        "kl_cov",
        f"policy_loss_type=kl_cov, token_mean, kl_cov.kl_cov_frac={KL_COV_SHARE}",
        {"policy_loss_type": "kl_cov"},
        "advantages are divided by N before the loss, its KL term is not; the share is the micro-batch's own",
    ),
)


ESTIMATORS = (Row("maxrl", "advantage_estimator=maxrl"),)


def advantages(_: Row, batch: Batch) -> Floats:
    rewards = torch.zeros(batch.mask.shape, dtype=torch.float64)
    rewards[range(len(batch)), [length - 1 for length in batch.lengths]] = torch.tensor(REWARDS[:, 0])
    found, _ = compute_maxrl_advantage(
        rewards, torch.tensor(batch.mask), index=np.arange(len(batch)) // GROUP_SIZE
    )
    return found[:, 0].numpy()


def gradient(task: Task) -> Floats:
    algorithm = _configuration(task)
    advantages = apply_loss_reduction_to_advantages_minibatch(
        advantages=torch.tensor(task.batch.advantages),
        loss_mask=torch.tensor(task.batch.mask),
        loss_reduction=algorithm.loss_reduction,
        micro_batch_size=len(task.micro_batches[0]),
        max_seq_len=algorithm.max_seq_len,
        prompt_boundaries=[(start, start + GROUP_SIZE) for start in range(0, len(task.batch), GROUP_SIZE)],
    )

    def run(parts: list[MicroBatch]) -> None:
        num_rows = sum(len(rows) for rows in task.micro_batches)
        for part, rows in zip(parts, task.micro_batches, strict=True):
            worker = _worker(task, algorithm, part)
            experience = _experience(part, advantages[rows])
            PolicyWorkerBase._forward_backward_micro(worker, experience, len(rows) / num_rows)

    return accumulated(task, run, trim=False)


def _configuration(task: Task) -> AlgorithmConfig:
    """Fill each loss's own section; a loss reads one of them."""
    low, high = task.clip_low, task.clip_high
    return AlgorithmConfig(
        **({"policy_loss_type": "regular", "loss_reduction": "token_mean"} | task.row.options),
        eps_clip_low=low,
        eps_clip_high=high,
        cispo=CISPOConfig(cispo_eps_clip_low=low, cispo_eps_clip_high=high),
        dppo=DPPOConfig(
            dppo_type="binary_kl" if task.row.algorithm == "dppo_kl" else "binary_tv",
            delta_low=low,
            delta_high=high,
        ),
        clip_cov=ClipCovConfig(clip_ratio=1.0, clip_cov_lb=CLIP_COV[0], clip_cov_ub=CLIP_COV[1]),
        kl_cov=KLCovConfig(kl_cov_frac=KL_COV_SHARE, ppo_kl_coef=1.0),
        max_seq_len=task.max_response_length,
        use_kl_loss=task.kl_coef > 0,
        kl_loss_coef=task.kl_coef,
        kl_estimator_type="k3",
    )


def _worker(task: Task, algorithm: AlgorithmConfig, part: MicroBatch) -> SimpleNamespace:
    """A worker with what the method reads; anything else is an AttributeError."""
    return SimpleNamespace(
        cfg=SimpleNamespace(algorithm=algorithm),
        policy_loss_fn=PolicyLossRegistry.get(algorithm.policy_loss_type),
        model=_Model(part.log_prob),
        mesh_rank=SimpleNamespace(dp_size=task.world_size),
        strategy=SimpleNamespace(backward=lambda loss, _model, _optimizer: loss.backward()),
        optimizer=None,
        scheduler=SimpleNamespace(get_last_lr=lambda: [0.0]),
    )


class _Model:
    train: Callable[[], None]

    def __init__(self, log_prob: Tensor) -> None:
        self.log_prob = log_prob
        self.train = lambda: None

    def __call__(self, sequences: Tensor, num_actions: int, **_: Any) -> tuple[Tensor, dict[str, Tensor]]:
        assert num_actions == self.log_prob.shape[1]
        return self.log_prob, {"entropy": torch.zeros(sequences.shape)}


def _experience(part: MicroBatch, advantages: Tensor) -> Experience:
    rows, width = part.mask.shape
    tokens = torch.zeros(rows, width + 1, dtype=torch.int64)
    return Experience(
        sequences=tokens,
        action_log_probs=part.old_log_prob,
        base_action_log_probs=part.ref_log_prob,
        values=None,
        returns=None,
        advantages=advantages,
        attention_mask=torch.ones_like(tokens),
        loss_mask=part.mask.to(torch.int64),
        action_mask=part.present.to(torch.int64),
        rollout_logprobs=None,
        rollout_expert_indices=None,
        num_actions=width,
        info={},
    )
