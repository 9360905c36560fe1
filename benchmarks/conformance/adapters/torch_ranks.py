"""Ranks and gradients of the log-probs, for adapters of torch frameworks. No loss and no scaling."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.conformance.adapter import Task
from benchmarks.conformance.batch import Floats


@dataclass(frozen=True)
class MicroBatch:
    """Some responses, (b, t); ``log_prob`` is part of the graph, the others are data."""

    log_prob: Tensor
    old_log_prob: Tensor
    ref_log_prob: Tensor
    advantages: Tensor
    mask: Tensor
    present: Tensor
    lengths: list[int]


def start_ranks() -> None:
    """Join the other ranks in a gloo process group, also where there is only one."""
    if not dist.is_initialized():
        dist.init_process_group("gloo")


def accumulated(task: Task, run: Callable[[list[MicroBatch]], None], *, trim: bool) -> Floats:
    """Return what ``run`` accumulates in the gradient of the log-probs over this rank's micro-batches.

    Args:
        run: does with the micro-batches what the framework's trainer does, backward passes included.
        trim: micro-batches are padded to their own longest response, not to the mini-batch's.
    """
    leaf = torch.tensor(task.batch.log_prob, requires_grad=True)
    run([_micro_batch(task, leaf, rows, trim=trim) for rows in task.micro_batches])
    assert leaf.grad is not None, "no gradient has reached the log-probs"
    gradient: Floats = leaf.grad.numpy()
    return gradient


def _micro_batch(task: Task, leaf: Tensor, rows: list[int], *, trim: bool) -> MicroBatch:
    part = task.batch.select(rows, trim=trim)
    width = part.mask.shape[1]
    return MicroBatch(
        log_prob=leaf[rows, :width],
        old_log_prob=torch.tensor(part.old_log_prob),
        ref_log_prob=torch.tensor(part.ref_log_prob),
        advantages=torch.tensor(part.advantages),
        mask=torch.tensor(part.mask),
        present=torch.tensor(part.present),
        lengths=part.lengths,
    )
