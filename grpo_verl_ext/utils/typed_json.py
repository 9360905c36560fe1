"""Read JSON with checked types, since a file may have been damaged or edited after it was written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from inspect import formatannotation
from keyword import iskeyword
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

Kind = TypeVar("Kind")

PARSE_ERRORS = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)
"""Exceptions that damaged JSON raises: bad UTF-8 or syntax, other keys or types, too deep, huge numbers."""


def typed(content: Any, hints: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content if it is an object that has these keys with values of these types.

    It may also have other keys.

    Args:
        hints: type hints that JSON can express, such as ``dict[str, list[int]]`` and ``str | None``.

    Raises:
        KeyError, TypeError: the content does not fit.
    """
    if not isinstance(content, dict):
        raise TypeError(f"it is a {type(content).__name__}")
    for key, hint in hints.items():
        if not is_a(content[key], hint):
            raise TypeError(f"{key} is a {type(content[key]).__name__}; valid is {formatannotation(hint)}")
    return content


def made(kind: type[Kind], content: Any) -> Kind:
    """Make a dataclass from a JSON object of its fields; those with a default may be missing.

    Fields may be dataclasses, or lists of them, in turn.

    Raises:
        TypeError: a field is missing, unknown, or of another type.
    """
    hints = written_hints(kind)
    values = {key: _nested(each, hints.get(key, Any)) for key, each in content.items()}
    there = {key: hint for key, hint in hints.items() if key in values}
    return kind(**{field_name(key): value for key, value in typed(values, there).items()})


def _nested(value: Any, hint: Any) -> Any:
    """The value with a dataclass for each JSON object where the hint declares one."""
    hint = without_none(hint)
    if is_dataclass(hint) and isinstance(hint, type) and value is not None:
        return made(hint, value)
    if get_origin(hint) is list and isinstance(value, list):
        return [_nested(each, get_args(hint)[0]) for each in value]
    return value


def as_written(value: Any) -> Any:
    """The JSON of a dataclass from which `made` makes it again."""
    if is_dataclass(value):
        names = (field.name for field in fields(value))
        return {written_key(name): as_written(getattr(value, name)) for name in names}
    return [as_written(each) for each in value] if isinstance(value, list) else value


def written_hints(kind: Any) -> dict[str, Any]:
    """Type hints of a dataclass by the keys that a file has: a field ``is_`` is written ``is``."""
    return {written_key(name): hint for name, hint in get_type_hints(kind).items()}


def written_key(name: str) -> str:
    """The key of a field; the field of a key that is a Python keyword ends with an underscore."""
    return name[:-1] if name.endswith("_") and iskeyword(name[:-1]) else name


def field_name(key: str) -> str:
    """The field of a key."""
    return f"{key}_" if iskeyword(key) else key


def without_none(hint: Any) -> Any:
    """``X`` of ``X | None``."""
    others = [each for each in get_args(hint) if each is not NoneType]
    return others[0] if NoneType in get_args(hint) and len(others) == 1 else hint


def is_a(value: Any, hint: Any) -> bool:
    """Whether the value, including all nested elements, is of the type that the hint names."""
    arguments = get_args(hint)
    if hint in (Any, object):
        return True
    if get_origin(hint) is list:
        return isinstance(value, list) and all(is_a(each, arguments[0]) for each in value)
    if get_origin(hint) is dict:
        return isinstance(value, dict) and all(is_a(each, arguments[1]) for each in value.values())
    if arguments:  # a union
        return any(is_a(value, each) for each in arguments)
    return isinstance(value, int | float if hint is float else hint)
