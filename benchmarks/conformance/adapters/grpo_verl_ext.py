"""This package: its losses, registered with verl and called by verl's own ``ppo_loss``."""

from __future__ import annotations

from dataclasses import replace

import torch

import grpo_verl_ext.plugin  # noqa: F401  # registers its losses with verl
from benchmarks.conformance.adapter import Row, Task
from benchmarks.conformance.adapters import verl
from benchmarks.conformance.batch import MAX_RESPONSE_LENGTH, Floats
from grpo_verl_ext.algorithms.advantages import per_prompt_token
from grpo_verl_ext.verl_plugin.loss_config import LossConfig

TITLE = "grpo_verl_ext, in verl"
DISTRIBUTION = "verl"
BESIDE = verl.BESIDE
SOURCES: tuple[str, ...] = ()
"""None: this package changes with the table, and its tests hold it."""
HAS_K3_LOSS = True
STAND_INS = ()
CUTS = verl.CUTS
NO_MODE: dict[str, str] = {}
ROWS = (
    Row("grpo", "+algo=grpo", {"loss_mode": "grpo", "loss_agg_mode": "seq-mean-token-mean"}),
    Row("dapo", "+algo=dapo", {"loss_mode": "dapo", "loss_agg_mode": "token-mean"}),
    Row(
        "dapo",
        "+algo=dapo, adv_estimator=loss_mode=dapo_per_prompt",
        {"loss_mode": "dapo_per_prompt", "loss_agg_mode": "token-mean"},
    ),
    Row("dapo", "+algo=bnpo", {"loss_mode": "bnpo", "loss_agg_mode": "token-mean"}, "by definition", True),
    Row(
        "dr_grpo",
        "+algo=dr_grpo",
        {
            "loss_mode": "dr_grpo",
            "loss_agg_mode": "seq-mean-token-sum-norm",
            "loss_scale_factor": MAX_RESPONSE_LENGTH,
        },
    ),
)


def gradient(task: Task) -> Floats:
    if task.row.options["loss_mode"] == "dapo_per_prompt":  # its estimator's last step
        batch = task.batch
        group = torch.arange(len(batch)) // task.group_size
        advantages = per_prompt_token(torch.tensor(batch.advantages), torch.tensor(batch.mask), group)
        task = replace(task, batch=replace(batch, advantages=advantages.numpy()))
    return verl.through_ppo_loss(task, LossConfig)
