"""This package: its losses, registered with verl and called by verl's own ``ppo_loss``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

import grpo_verl_ext.plugin  # noqa: F401  # registers its losses with verl
from benchmarks.conformance.adapter import Row, Task
from benchmarks.conformance.adapters import verl
from benchmarks.conformance.batch import MAX_RESPONSE_LENGTH, REWARDS, Batch, Floats
from grpo_verl_ext import catalogue
from grpo_verl_ext.algorithms.advantages import per_prompt_token
from grpo_verl_ext.verl_plugin.estimators import estimator_function
from grpo_verl_ext.verl_plugin.loss_config import LossConfig
from grpo_verl_ext.verl_plugin.wire import SEVERAL_REWARDS

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
    return verl.through_ppo_loss(task, LossConfig)
