"""What is wrong, or may be, with a configuration: one form for the driver, for `doctor`, and for JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

from omegaconf import DictConfig


class Severity(str, Enum):
    """What happens when a training starts."""

    ERROR = "error"
    """It is refused."""
    WARNING = "warning"
    """It is said, unless silenced by the name of the check."""


class SettingError(ValueError):
    """A setting that cannot be meant; the message ends with the line to type."""

    def __init__(self, message: str, *, key: str) -> None:
        super().__init__(message)
        self.key = key


@dataclass(frozen=True)
class Advice:
    """A setting that can be meant, and seldom is; the message ends with the line to type."""

    message: str
    key: str


@dataclass(frozen=True)
class Finding:
    """What one check found, an error or advice."""

    check: str
    severity: Severity
    key: str
    value: object
    message: str

    @property
    def why(self) -> str:
        """The message without the line to type."""
        return self.message.rpartition(" Type: ")[0]

    @property
    def remedy(self) -> str:
        """The line to type."""
        return self.message.rpartition(" Type: ")[2]


Refuse = Callable[[DictConfig], None]
"""A check that raises `SettingError`."""
Advise = Callable[[DictConfig], Iterator[Advice]]
"""A check that refuses nothing."""
