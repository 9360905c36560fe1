"""A value laid down around a call of verl's, for a function of ours that verl calls inside and hands less."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Generic, TypeVar

Value = TypeVar("Value")


class LaidDown(Generic[Value]):
    """One such value of this thread; None outside of `during`."""

    def __init__(self, name: str) -> None:
        self._value: ContextVar[Value | None] = ContextVar(name, default=None)

    def current(self) -> Value | None:
        """What the innermost `during` laid down."""
        return self._value.get()

    @contextmanager
    def during(self, value: Value) -> Iterator[None]:
        """Let `current` answer with this value inside the block."""
        token = self._value.set(value)
        try:
            yield
        finally:
            self._value.reset(token)
