"""Values passed to our losses and estimators through calls of verl that do not forward them.

The trainer or the worker sets each one; the loss or the estimator reads it inside the call. This page is all
of the hidden data flow: what a registered loss or estimator uses besides its arguments is here.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

Value = TypeVar("Value")


class ScopedValue(Generic[Value]):
    """A value of this thread inside a ``with`` block, and None outside of it."""

    def __init__(self, name: str) -> None:
        self._value: ContextVar[Value | None] = ContextVar(name, default=None)

    def get(self) -> Value | None:
        """Return the value of the innermost block."""
        return self._value.get()

    @contextmanager
    def set(self, value: Value) -> Iterator[None]:
        """Let `get` return this value inside the block."""
        token = self._value.set(value)
        try:
            yield
        finally:
            self._value.reset(token)


OUR_TRAINER = ScopedValue[bool]("trainer of this package")
"""Trainer → estimator: true while a trainer mode of this package calls."""

KEYS = ScopedValue[Sequence[str]]("keys")
"""Trainer → estimator: verl's keys of the batch, one a row, which tell rows of one session apart."""


@dataclass(frozen=True)
class Steps:
    """All S steps of the responses of a batch, (S,) each: see `algorithms.process`."""

    rewards: Tensor
    row: Tensor
    end: Tensor


STEPS = ScopedValue[Steps]("steps")
"""Trainer → estimator of process supervision, to which verl hands rewards only."""

DUMPED_COLUMNS = ScopedValue[dict[str, dict[str, list[float]]]]("columns")
"""Trainer → the same trainer's dump of rollouts: more columns, by the row's uid."""

GROUP_INDEX = "group_index"
GROUP_SIZE = "group_size"
GROUP_DRIFT = "group_drift"
"""Fields of the batch, one number per response: the trainer writes the first two, the worker the third."""


@dataclass(frozen=True)
class GroupRows:
    """For each response of a micro-batch, (B,) each.

    Attributes:
        index: number of its prompt within the rollout batch.
        size: k, responses of that prompt that have tokens: neither padding nor rejected.
        drift: Δ̄, mean of log π_θ(y) − log π_old(y) over them, at the policy before this update, in nats.
        old_is_current: the policy has not moved since ``old_log_probs`` were computed, so that they are
            the log-probs of this very update, which another forward pass rounded differently.
    """

    index: Tensor
    size: Tensor
    drift: Tensor
    old_is_current: bool = False


GROUPS = ScopedValue[GroupRows]("group rows")
"""Worker → loss: the rows of the micro-batch; verl's ``ppo_loss`` passes no prompt id, no field of ours."""


def at_first_update(rows: int, group_size: int, device: torch.device | None = None) -> GroupRows:
    """Rows of complete groups under a policy that has not moved: for a call outside a training."""
    return GroupRows(
        index=torch.zeros(rows, dtype=torch.int64, device=device),
        size=torch.full((rows,), group_size, device=device),
        drift=torch.zeros(rows, device=device),
    )
