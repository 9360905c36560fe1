"""What a key of the configuration accepts: a rule with its check, and the dataclass field that has one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard, TypeVar, cast

from grpo_verl_ext.utils.errors import SettingError

LARGEST = 1e30
"""Largest |value| of a numeric setting: products of settings must fit fp32, which ends at 3.4e38."""


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether the value is a number (not a bool) of at most `LARGEST` in size."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= LARGEST


def is_positive(value: object) -> TypeGuard[int | float]:
    """Whether the value is a number > 0 and at most `LARGEST`."""
    return is_number(value) and value > 0


def is_count(value: object) -> TypeGuard[int]:
    """Whether the value is an integer ≥ 1 that fits int64."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 2**63


@dataclass(frozen=True)
class Rule:
    """The values that a key accepts.

    Attributes:
        accepts: whether a value is valid.
        valid: a description of the values, or the values; for messages and ``docs/settings.md``.
        example: a valid value as typed.
        nullable: whether null is valid, too.
    """

    accepts: Callable[[Any], bool]
    valid: str | tuple[str, ...]
    example: str
    nullable: bool = False

    def check(self, key: str, value: object, *, why: str = "", fix: str = "") -> None:
        """Refuse an invalid value.

        Raises:
            SettingError: the value is not valid.
        """
        if value is None and self.nullable:
            return
        if value is None or not self.accepts(value):
            raise SettingError(key, value, why=why, valid=self.valid, fix=fix or self._line(key))

    def _line(self, key: str) -> str:
        line = f"{key}={self.example}"
        return f"'{line}'" if set(line) & {"$", " "} else line


def one_of(*names: str, nullable: bool = False) -> Rule:
    """Return the rule of a key that accepts one of these names."""
    return Rule(lambda value: value in names, names, names[0], nullable)


ON_OR_OFF = Rule(lambda value: isinstance(value, bool), ("true", "false"), "true")
POSITIVE = Rule(is_positive, "a finite number > 0", "0.1")
FACTOR = Rule(is_number, "a finite number", "1.0")


SECTION_OR_NULL = Rule(lambda value: isinstance(value, Mapping), "a section, or null", "null", nullable=True)

Value = TypeVar("Value")
RULE, DESCRIPTION = "rule", "description"
"""Keys in the metadata of a field."""


def key(default: Value, rule: Rule, description: str) -> Value:
    """Return a dataclass field with a default, a rule and one line for ``docs/settings.md``."""
    made: Any = field(default=default, metadata={RULE: rule, DESCRIPTION: description})
    return cast(Value, made)
