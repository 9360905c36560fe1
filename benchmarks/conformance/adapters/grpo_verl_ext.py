"""This package: its losses, registered with verl and called by verl's own ``ppo_loss``."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from verl.workers.config import ActorConfig

import grpo_verl_ext.plugin  # noqa: F401  # registers its losses with verl
from benchmarks.conformance.adapter import Row, Task
from benchmarks.conformance.adapters import verl
from benchmarks.conformance.batch import GROUP_SIZE, MAX_RESPONSE_LENGTH, REWARDS, Batch, Floats, Rows
from benchmarks.conformance.oracle import CLIP_COV, KL_COV_SHARE
from grpo_verl_ext import catalogue
from grpo_verl_ext.algorithms.advantages import per_prompt_token
from grpo_verl_ext.algorithms.mini_batch import PartOfRows, evaluated
from grpo_verl_ext.verl_plugin.estimators import estimator_function
from grpo_verl_ext.verl_plugin.loss_config import LossConfig
from grpo_verl_ext.verl_plugin.wire import SEVERAL_REWARDS, STATISTIC

TITLE = "grpo_verl_ext, in verl"
DISTRIBUTION = "verl"
BESIDE = verl.BESIDE
SOURCES: tuple[str, ...] = ()
"""None: this package changes with the table, and its tests hold it."""
HAS_K3_LOSS = True
STAND_INS = ()
CUTS = verl.CUTS
NO_MODE: dict[str, str] = {}


def _preset(name: str, settings: str = "", note: str = "", **options: Any) -> Row:
    """Return the row of a preset ``+algo=``, with the loss, average, options and dual clip that it has."""
    algorithm, preset = catalogue.ALGORITHMS[name], catalogue.PRESETS[name]
    chosen: dict[str, Any] = {"loss_mode": algorithm.loss.name, "loss_agg_mode": algorithm.loss_agg_mode}
    if "clip_ratio_c" in preset.numbers:
        chosen["clip_ratio_c"] = preset.numbers["clip_ratio_c"]
    return Row(name, f"+algo={name}{settings}", chosen | dict(preset.options) | options, note)


_STATISTIC = (
    "chosen from the whole mini-batch, whose rows the adapter puts together; in a training this package's "
    "workers do (`tests/plugin/mini_batch`)"
)


ROWS = (
    _preset("grpo"),
    _preset("dapo"),
    _preset("dapo", ", adv_estimator=loss_mode=dapo_per_prompt", loss_mode="dapo_per_prompt"),
    replace(_preset("bnpo", note="by definition"), algorithm="dapo", control=True),
    _preset("dr_grpo", loss_scale_factor=MAX_RESPONSE_LENGTH),
    _preset("luspo", note="verl's `gspo`, summed over tokens"),
    _preset("vespo"),
    _preset("dppo", note="verl's loss", loss_scale_factor=MAX_RESPONSE_LENGTH),
    _preset("dppo_kl", note="verl's loss", loss_scale_factor=MAX_RESPONSE_LENGTH),
    _preset(
        "clip_cov",
        ", clip_cov_ratio=1",
        _STATISTIC,
        clip_cov_ratio=1.0,
        clip_cov_lb=CLIP_COV[0],
        clip_cov_ub=CLIP_COV[1],
    ),
    _preset("kl_cov", f", kl_cov_ratio={KL_COV_SHARE}", _STATISTIC, kl_cov_ratio=KL_COV_SHARE),
    _preset("gspo", note="verl's loss, averaged as the paper has it"),
    _preset("cispo", note="verl's loss; ε_high 0.5 is a clip at 1.5, where the preset's 4.0 is one at 5"),
)


ESTIMATORS = (Row("maxrl", "+algo=maxrl"), Row("gdpo", "+algo=gdpo"))


def advantages(row: Row, batch: Batch) -> Floats:
    """Call the estimator as verl does: the reward on a response's last token, a group's name for each row."""
    with SEVERAL_REWARDS.set(torch.tensor(REWARDS)):
        found, _ = estimator_function(catalogue.ALGORITHMS[row.algorithm].estimator)(
            verl.on_last_token(REWARDS[:, 0], batch), torch.tensor(batch.mask), index=verl.prompt_ids(batch)
        )
    return found[:, 0].numpy()


def gradient(task: Task) -> Floats:
    if task.row.options["loss_mode"] == "dapo_per_prompt":  # its estimator's last step
        batch = task.batch
        group = torch.arange(len(batch)) // task.group_size
        advantages = per_prompt_token(torch.tensor(batch.advantages), torch.tensor(batch.mask), group)
        task = replace(task, batch=replace(batch, advantages=advantages.numpy()))
    return verl.through_ppo_loss(task, LossConfig, partial(_with_statistic, task.batch))


def _with_statistic(batch: Batch, config: ActorConfig, rows: Rows, width: int) -> AbstractContextManager[Any]:
    """Give the loss its statistic of the whole mini-batch, as `mini_batch.worker` does in a training."""
    loss = catalogue.LOSSES.get(config.policy_loss.loss_mode)
    if loss is None or loss.needs is None:
        return nullcontext()
    compute = loss.needs.compute
    mask = torch.tensor(batch.mask).bool()
    tokens = [torch.tensor(each)[mask] for each in (batch.log_prob, batch.old_log_prob, batch.advantages)]
    number = torch.arange(len(batch))
    group = torch.full_like(number, GROUP_SIZE)
    part = PartOfRows(torch.stack(tokens), torch.stack([mask.sum(1), number, number // GROUP_SIZE, group]))
    found = evaluated(lambda each: compute(each, config), [part], own=0, seed=0)
    padded = torch.zeros(mask.shape, dtype=found.dtype).masked_scatter(mask, found)
    return STATISTIC.set(padded[rows, :width])
