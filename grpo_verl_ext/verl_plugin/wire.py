"""Values passed to our losses and estimators through calls of verl that do not forward them.

The trainer or worker sets each one; the loss or estimator reads it inside the call. All input of a registered
loss or estimator besides its arguments is listed here.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

import torch
from torch import Tensor

Value = TypeVar("Value")


class _ScopedValue(Generic[Value]):
    """A value per thread that is set inside a ``with`` block and None outside."""

    def __init__(self, name: str) -> None:
        self._value: ContextVar[Value | None] = ContextVar(name, default=None)

    def get(self) -> Value | None:
        """Return the value set by the innermost block, or None."""
        return self._value.get()

    @contextmanager
    def set(self, value: Value) -> Iterator[None]:
        """Make `get` return this value inside the block."""
        token = self._value.set(value)
        try:
            yield
        finally:
            self._value.reset(token)


OUR_TRAINER = _ScopedValue[bool]("trainer of this package")
"""Trainer → estimator: true in a call by a trainer mode of this package."""

KEYS = _ScopedValue[Sequence[str]]("keys")
"""Trainer → estimator: verl's key of each row, which identifies its session."""


@dataclass(frozen=True)
class Steps:
    """All S steps of the responses of a batch, (S,) each; see `algorithms.process`."""

    rewards: Tensor
    row: Tensor
    end: Tensor


STEPS = _ScopedValue[Steps]("steps")
"""Trainer → estimator ``grpo_process``: the steps; verl passes rewards only."""

DUMPED_COLUMNS = _ScopedValue[dict[str, dict[str, list[float]]]]("columns")
"""Trainer → its rollout dump: additional columns, by the row's uid."""

GROUP_INDEX = "group_index"
GROUP_SIZE = "group_size"
GROUP_DRIFT = "group_drift"
OLD_DEVIATION = "group_old_deviation"
ANCHOR_DEVIATION = "group_anchor_deviation"
"""Fields of the batch, one number per response: the trainer writes the first two, the worker the others;
`GROUP_DRIFT` only where it is measured beforehand."""


class DriftSource(Enum):
    """Where the loss gvpo gets Δ̄ from, the mean log-ratio of a prompt's responses.

    The value is what the trainer writes to the batch.
    """

    MICRO_BATCH = "micro-batch"
    """The training pass: each micro-batch holds whole groups."""
    RANKS = "ranks"
    """The training pass: the micro-batches with the same number on all ranks together hold whole groups."""
    FORWARD_PASS = "forward pass"
    """A forward pass over the mini-batch before its update."""


Drift = Callable[[Tensor, Tensor], Tensor]
"""(Δ of the rows of a micro-batch, detached; which of them are responses) → Δ̄ of each row's prompt."""


@dataclass(frozen=True)
class GroupRows:
    """The group of each response of a micro-batch, (B,) each.

    Attributes:
        index: number of its prompt in the rollout batch.
        size: k, the prompt's responses with tokens: neither padding nor rejected.
        drift: returns Δ̄, mean of Δ = log π_θ(y) − log π_old(y) over them, at the policy before this update,
            in nats: (B,), (B,) bool → (B,); 0 for a row that is no response.
        old_deviation: log π_old(y) minus its mean over them, in nats.
        anchor_deviation: log π′(y) minus its mean over them, in nats.
        old_is_current: whether the policy has not moved since ``old_log_probs`` were computed; these then
            differ from the current log-probs by rounding alone.
    """

    index: Tensor
    size: Tensor
    drift: Drift
    old_deviation: Tensor
    anchor_deviation: Tensor
    old_is_current: bool = False


GROUPS = _ScopedValue[GroupRows]("group rows")
"""Worker → loss: the groups of the micro-batch's rows; verl's ``ppo_loss`` passes no prompt ids."""


def no_drift(log_ratio: Tensor, member: Tensor) -> Tensor:  # noqa: ARG001  # a `Drift`
    """Return Δ̄ = 0, for a policy that has not moved."""
    return torch.zeros_like(log_ratio)


def at_first_update(rows: int, group_size: int, device: torch.device | None = None) -> GroupRows:
    """Return rows of complete groups under a policy that has not moved, for calls outside a training."""
    zeros = torch.zeros(rows, device=device)
    return GroupRows(
        index=zeros.long(),
        size=torch.full((rows,), group_size, device=device),
        drift=no_drift,
        old_deviation=zeros,
        anchor_deviation=zeros,
    )
