"""The steps of a batch, laid down by the trainer for the estimator, to which verl hands rewards only."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Steps:
    """All S steps of the responses of a batch, (S,) each: see `algorithms.process`."""

    rewards: Tensor
    row: Tensor
    end: Tensor


_current: ContextVar[Steps | None] = ContextVar("steps", default=None)


def current() -> Steps | None:
    """The steps of the batch at hand; None under a trainer that does not lay them down."""
    return _current.get()


@contextmanager
def laid_down(steps: Steps) -> Iterator[None]:
    """Let `current` answer with these steps inside the block."""
    token = _current.set(steps)
    try:
        yield
    finally:
        _current.reset(token)
