"""Problems with settings, in one form for exceptions, warnings and ``doctor --json``."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any


class Line(str):
    """The words to type where they are parts of a training's command; ``doctor --fix`` puts them there.

    As text: the words, quoted for a shell, and ``more``, such as another way.
    """

    words: tuple[str, ...]
    """``key=value``, which replaces what the command gives the key; ``~key``, which removes the key."""
    without: tuple[str, ...]
    """Keys and sections whose words leave the command."""
    more: str

    def __new__(cls, *words: str, without: tuple[str, ...] = (), more: str = "") -> "Line":
        """Return the line."""
        quoted = (f"'{word}'" if set(word) & set('$ []"') else word for word in words)
        line = super().__new__(cls, " ".join(quoted) + more)
        line.words, line.without, line.more = words, without, more
        return line

    def __getnewargs_ex__(self) -> tuple[tuple[str, ...], dict[str, Any]]:
        """Support pickling."""
        return self.words, {"without": self.without, "more": self.more}


class Severity(str, Enum):
    """The consequence of a problem when a training starts."""

    ERROR = "error"
    """The training is refused."""
    WARNING = "warning"
    """A warning is printed, unless the check is silenced by its name."""
    NOTE = "note"
    """It is printed, and is no fault."""


@dataclass(frozen=True)
class Problem:
    """A setting with a wrong or seldom intended value.

    As text: ``{key} is {value}, but {why}; valid is {valid}. Type: {fix}``.
    """

    key: str
    value: object
    fix: str = ""
    """The line to type; empty where ``seen`` is a complete message that contains it."""
    why: str = ""
    """What contradicts the value; follows "…, but"."""
    valid: str | Sequence[str] = ""
    """A description of the valid values, or the values."""
    seen: str = ""
    """Replaces ``{key} is {value}`` where one value does not say it."""

    @property
    def reason(self) -> str:
        """The message without the line to type."""
        seen = self.seen or f"{self.key} is {as_typed(self.value)}"
        but = f", but {self.why}" if self.why else ""
        if not self.valid:
            return f"{seen}{but}"
        values = [self.valid] if isinstance(self.valid, str) else self.valid
        return f"{seen}{but}; valid {'is' if len(values) == 1 else 'are'} {', '.join(values)}"

    def __str__(self) -> str:
        return f"{self.reason}. Type: {self.fix}" if self.fix else self.reason


class SettingError(ValueError):
    """Raised for a setting with a wrong value; has the fields of `Problem`."""

    def __init__(self, key: str, value: object, **said: Any) -> None:
        self.problem = Problem(key, value, **said)
        super().__init__(str(self.problem))

    def __reduce__(self) -> tuple[object, ...]:
        """Support pickling, which Ray needs for an error raised in a worker."""
        return partial(SettingError, **vars(self.problem)), ()


@dataclass(frozen=True)
class Finding:
    """A problem found by one check."""

    check: str
    severity: Severity
    problem: Problem


def as_typed(value: object) -> str:
    """Return a value as typed on the command line: ``null``, ``true``, ``fsdp2``.

    A text that YAML would read as another type, such as ``'1'``, or with an invisible character is quoted.
    """
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    import yaml  # for which the command line must not wait

    with suppress(yaml.YAMLError):
        if isinstance(value, str) and value.isprintable() and yaml.safe_load(value) == value:
            return value
    return repr(value)
