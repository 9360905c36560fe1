"""JSON that gives back tuples, fractions, and dictionaries whose keys are not text, as they were."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import numpy as np

_TUPLE, _PAIRS, _FRACTION = "__tuple__", "__pairs__", "__fraction__"


def dumps(value: object) -> str:
    """Return the JSON text; numpy's numbers and texts become Python's.

    Raises:
        TypeError: a value of another type.
    """
    return json.dumps(_plain(value), ensure_ascii=False)


def loads(text: str) -> Any:
    """Return what `dumps` was given."""
    return json.loads(text, object_hook=_restored)


def _plain(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Fraction):
        return {_FRACTION: str(value)}
    if isinstance(value, tuple):
        return {_TUPLE: [_plain(each) for each in value]}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return _plain_dictionary(value) if isinstance(value, dict) else value


def _plain_dictionary(value: dict[Any, Any]) -> dict[str, object]:
    if all(type(key) is str for key in value) and value.keys().isdisjoint((_TUPLE, _PAIRS, _FRACTION)):
        return {key: _plain(each) for key, each in value.items()}
    return {_PAIRS: [[_plain(key), _plain(each)] for key, each in value.items()]}


def _restored(found: dict[str, Any]) -> object:
    if found.keys() == {_TUPLE}:
        return tuple(found[_TUPLE])
    if found.keys() == {_FRACTION}:
        return Fraction(found[_FRACTION])
    return dict(found[_PAIRS]) if found.keys() == {_PAIRS} else found
