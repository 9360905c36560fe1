"""Mini-batches and verl's configurations for tests of losses, which choose advantages and clips."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from verl.workers.config import ActorConfig

from grpo_verl_ext.catalogue import LOSSES, PRESETS, Preset
from grpo_verl_ext.proof.batch import ROWS_PER_PROMPT, Rollout
from grpo_verl_ext.proof.invariance import Case
from grpo_verl_ext.verl_plugin.loss_config import LossConfig
from grpo_verl_ext.verl_plugin.wire import GroupRows


def ragged_batch(dtype: torch.dtype, seed: int = 0) -> Rollout:
    """The synthetic rollout with random advantages, in groups of four; the last response has no token."""
    rows, generator = Rollout.synthetic(seed=seed, dtype=dtype), torch.Generator().manual_seed(seed)
    advantages = (torch.randn(len(rows.lengths), 1, generator=generator) * rows.response_mask).to(dtype)
    return replace(rows, prompt=torch.arange(16) // ROWS_PER_PROMPT, advantages=advantages, of_anchor=None)


def actor_config(case: Case, **overrides: Any) -> ActorConfig:
    """verl's configuration for a case, with the KL term on, and verl's default clips for a loss of ours."""
    preset = PRESETS.get(case.name, Preset())
    options = {"strategy": "fsdp", "rollout_n": ROWS_PER_PROMPT, "ppo_micro_batch_size_per_gpu": 1}
    options |= {"loss_agg_mode": case.loss_agg_mode, "loss_scale_factor": case.loss_scale_factor}
    options |= {"use_kl_loss": True, "kl_loss_coef": 0.04} | ({} if case.name in LOSSES else preset.numbers)
    loss = LossConfig(loss_mode=case.loss_mode, **preset.options)
    return ActorConfig(**({"policy_loss": loss} | options | overrides))


def value_and_gradient(
    config: ActorConfig, batch: Rollout, ranks: list[list[list[int]]]
) -> tuple[Tensor, Tensor]:
    """L, and its gradient by log-probs, and by entropies where they count: (N,), or (2 N,)."""
    value, of_both = batch.value_and_gradient(config, ranks)
    return value, of_both[: 2 if config.entropy_coeff else 1, batch.given].flatten()


def at_first_update(rows: int, group_size: int) -> GroupRows:
    """What a worker tells GVPO's loss of rows in complete groups whose policy has not moved."""
    zeros = torch.zeros(rows)
    return GroupRows(
        index=zeros.long(),
        size=torch.full((rows,), group_size),
        drift=zeros,
        old_deviation=zeros,
        anchor_deviation=zeros,
    )
