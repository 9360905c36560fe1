"""What is wrong with a setting: one form for exceptions, for warnings and for ``doctor --json``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import yaml


class Severity(str, Enum):
    """What happens when a training starts with such a setting."""

    ERROR = "error"
    """The training is refused."""
    WARNING = "warning"
    """A warning is printed, unless the check is silenced by its name."""


@dataclass(frozen=True)
class Problem:
    """A setting with a wrong value, or with one that is seldom meant.

    As text: ``{key} is {value}, but {why}; valid is {valid}. Type: {fix}``.
    """

    key: str
    value: object
    fix: str = ""
    """The line to type; empty where ``seen`` is a message of another part of the package, which has it."""
    why: str = ""
    """Completes "…, but": what contradicts the value."""
    valid: str | Sequence[str] = ""
    """A description, or the valid values themselves."""
    seen: str = ""
    """Takes the place of ``{key} is {value}`` where one value does not say it."""

    @property
    def reason(self) -> str:
        """The text without the line to type."""
        seen = self.seen or f"{self.key} is {as_typed(self.value)}"
        but = f", but {self.why}" if self.why else ""
        if not self.valid:
            return f"{seen}{but}"
        valid = f"is {self.valid}" if isinstance(self.valid, str) else f"are {', '.join(self.valid)}"
        return f"{seen}{but}; valid {valid}"

    def __str__(self) -> str:
        return f"{self.reason}. Type: {self.fix}" if self.fix else self.reason


class SettingError(ValueError):
    """A setting with a wrong value; takes the fields of `Problem`."""

    def __init__(
        self,
        key: str,
        value: object,
        *,
        fix: str = "",
        why: str = "",
        valid: str | Sequence[str] = "",
        seen: str = "",
    ) -> None:
        self.problem = Problem(key, value, fix, why, valid, seen)
        super().__init__(str(self.problem))

    def __reduce__(self) -> tuple[object, ...]:
        """Ray pickles what is raised in a worker."""
        return SettingError.of, (self.problem,)

    @classmethod
    def of(cls, problem: Problem) -> SettingError:
        """The same as an exception."""
        return cls(
            problem.key,
            problem.value,
            fix=problem.fix,
            why=problem.why,
            valid=problem.valid,
            seen=problem.seen,
        )


@dataclass(frozen=True)
class Finding:
    """What one check found."""

    check: str
    severity: Severity
    problem: Problem


def as_typed(value: object) -> str:
    """A value as one types it: ``null``, ``true``, ``fsdp2``.

    A text that YAML would read as something else, such as ``'1'``, is in quotes.
    """
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if not isinstance(value, str):
        return repr(value)
    try:
        return value if yaml.safe_load(value) == value else repr(value)
    except yaml.YAMLError:
        return repr(value)
