"""Read YAML and JSON files into dataclasses that declare their keys and types; every error is one message."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache
from itertools import count
from pathlib import Path
from types import NoneType
from typing import Any, ClassVar, TextIO, TypeVar, cast, get_args, get_origin, get_type_hints

import yaml
from omegaconf import OmegaConf
from omegaconf._utils import get_yaml_loader  # what OmegaConf.load uses; it reads 1e-6 as a number
from omegaconf.errors import OmegaConfBaseException
from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, to_json

_Kind = TypeVar("_Kind")
_MISSING, _UNKNOWN = "missing", "unexpected_keyword_argument"
"""Kinds of pydantic's errors."""


class Document:
    """Base of a dataclass that is read from a file: unknown keys are refused, and a field ``is_`` is ``is``.

    Dataclasses among its fields follow the same rules without this base. A dataclass alone, without the
    base, ignores keys that it does not declare.
    """

    __pydantic_config__: ClassVar[Any] = {
        "extra": "forbid",
        "alias_generator": lambda name: name.rstrip("_"),
        "coerce_numbers_to_str": True,
    }


_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)


def read_if_there(
    file: Path, kind: type[_Kind], error: type[Exception], what: str, then: str = "type folder=<another>"
) -> _Kind | None:
    """Read a file that this package wrote, and refuse what is not ``what``; None where there is none."""
    try:
        return parse_json(file.read_bytes(), kind) if file.exists() else None
    except (ValueError, OSError) as wrong:
        raise error(f"{file} is not {what} ({wrong}). It was left in place; {then}") from wrong


def parse_json(content: bytes | str, kind: type[_Kind]) -> _Kind:
    """Return JSON as a dataclass or another type of pydantic's; nothing is converted: a program wrote it.

    The message of its ValueError is one reason, which a caller puts into its own.
    """
    try:
        return cast(_Kind, _adapter(kind).validate_json(content, strict=True))
    except ValidationError as wrong:
        first = wrong.errors(include_url=False)[0]
        key, reason = _path(first["loc"]), first["msg"]
        if first["type"] == _MISSING:
            raise ValueError(f"{key!r} is missing") from wrong
        seen = f"{key} is {first['input']!r:.200}: " if key else ""
        raise ValueError(f"{seen}{reason}") from wrong
    except OverflowError as wrong:
        raise ValueError(str(wrong)) from wrong


def read_lines(
    file: Path, kind: type[_Kind], error: type[Exception], *, what: str, only_whole: bool = False
) -> Iterator[_Kind]:
    """Yield the JSON documents of a file, one a line; ``what`` they are is said where one does not fit.

    With ``only_whole`` a last line without a line end is left out: a program was killed, or is still writing.
    """
    try:
        # As bytes: JSON may have Unicode's line separators, at which text mode would split a line.
        with file.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if only_whole and not line.endswith(b"\n"):
                    return
                try:
                    yield parse_json(line, kind)
                except ValueError as wrong:
                    said = f"{file}, line {number}, is no record of {what} ({wrong}). It was left in place; "
                    raise error(f"{said}correct it, or move it away to continue without it") from wrong
    except OSError as unreadable:
        raise error(f"{file} cannot be read as {what} ({unreadable.strerror})") from unreadable


def as_plain(value: object) -> Any:
    """Return a dataclass as the plain values that its file has."""
    return _adapter(type(value)).dump_python(value, by_alias=True, warnings=False)


def leaves(content: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted key of each value in nested dictionaries, and the value; an empty one is a value."""
    for name, value in content.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def numbers_as_text(content: Mapping[str, Any]) -> str:
    """Return results as JSON; NaN and ±∞, which JSON does not have, become null, as in verl's metrics."""
    return to_json(content, indent=2, inf_nan_mode="null", fallback=str).decode() + "\n"


def read_yaml(file: Path, kind: type[_Kind], error: type[Exception], overrides: Sequence[str] = ()) -> _Kind:
    """Read a YAML file into a `Document`, apply ``key=value`` overrides, and check every key and type.

    Keys, and values whose declared type is no number, are the text that was typed: ``on``, ``0.1`` and
    ``1e-6`` are not turned into Booleans and numbers there. ``${…}`` is resolved as OmegaConf does.
    """
    try:
        with file.open(encoding="utf-8") as stream:
            loaded = _load(stream, kind)
        if not isinstance(loaded, dict | NoneType):
            raise ValueError(f"it holds no keys; valid are {', '.join(_written_hints(kind))}")
        merged = OmegaConf.create(loaded or {})
        for override in overrides:
            key, equals, text = override.partition("=")
            if key.startswith("["):
                raise ValueError(f"{override!r} does not start with a key. Type: <key>=<value>")
            OmegaConf.update(merged, key, _load(text, _hint_at(kind, key.split("."))) if equals else None)
        plain = OmegaConf.to_container(merged, resolve=True, throw_on_missing=True)
        return cast(_Kind, _adapter(kind).validate_python(plain))
    except ValidationError as wrong:
        # an unknown key first, for it may be a known one misspelt
        first = min(wrong.errors(include_url=False), key=lambda each: each["type"] != _UNKNOWN)
        raise error(f"{file}: {_message(first, kind)}") from wrong
    except OmegaConfBaseException as wrong:
        key, reason = str(wrong.full_key or wrong.key), str(wrong.msg or wrong).splitlines()[0]
        raise error(f"{file}: {key}: {reason}. Type: {key}=<value>") from wrong
    except RecursionError as wrong:
        said = "refers to itself without end. Remove the ${…} or the *alias that does"
        raise error(f"{file} {said}") from wrong
    except (OSError, yaml.YAMLError, TypeError, ValueError, OverflowError) as wrong:
        raise error(f"{file} cannot be read: {wrong}") from wrong


_TAG = "tag:yaml.org,2002:"
_MOST_VALUES = 100_000


def _load(source: str | TextIO, hint: Any) -> Any:
    loader = get_yaml_loader()
    if (node := yaml.compose(source, loader)) is None:
        return None
    _keep_text(node, hint, count())
    return loader("").construct_document(node)


def _keep_text(node: yaml.Node, hint: Any, seen: Iterator[int]) -> None:
    """Mark keys, and scalars of a declared type, as strings before YAML constructs them."""
    if next(seen) > _MOST_VALUES:
        raise ValueError(f"its *aliases make more than {_MOST_VALUES} values of it. Remove some")
    if isinstance(node, yaml.ScalarNode):
        if "\0" in node.value:
            raise ValueError(f"{node.value!r} is a text with \\0, which no name may have. Type it without")
        typed = ("null", "int", "float") if hint in (int, float) else ("null",)
        if hint is not Any and node.tag.removeprefix(_TAG) not in typed:
            node.tag = f"{_TAG}str"
    elif isinstance(node, yaml.SequenceNode):
        for index, each in enumerate(node.value):
            _keep_text(each, _hint_at(hint, [index]), seen)
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            is_merged = key.tag == f"{_TAG}merge"
            if isinstance(key, yaml.ScalarNode) and not is_merged:
                key.tag = f"{_TAG}str"
            _keep_text(value, hint if is_merged else _hint_at(hint, [str(key.value)]), seen)


def _written_hints(kind: type) -> dict[str, Any]:
    """Return the type hints of a dataclass by the keys that a file has."""
    hints = get_type_hints(kind).items()
    return {name.rstrip("_"): hint for name, hint in hints if get_origin(hint) is not ClassVar}


def _hint_at(hint: Any, location: Iterable[int | str]) -> Any:
    """Return the type declared for keys of dataclasses and dictionaries, and for elements of lists."""
    for key in [*location, None]:
        others = [each for each in get_args(hint) if each is not NoneType]
        if NoneType in get_args(hint) and len(others) == 1:  # ``X`` of ``X | None``
            (hint,) = others
        if is_dataclass(hint) and key is not None:
            hint = _written_hints(cast(type, hint)).get(str(key), Any)
        elif key is not None:
            hint = get_args(hint)[-1] if get_origin(hint) is (list if isinstance(key, int) else dict) else Any
    return hint


def _path(location: Sequence[int | str]) -> str:
    """Return ``expect[0].is`` for ``("expect", 0, "is")``."""
    parts = (f"[{each}]" if isinstance(each, int) else f".{each}" for each in location)
    return "".join(parts).removeprefix(".")


def _message(wrong: ErrorDetails, kind: type) -> str:
    """Return key, value seen, valid values and the line to type."""
    *within, _ = wrong["loc"]
    key, value = _path(wrong["loc"]), wrong["input"]
    if wrong["type"] == _MISSING:
        typed = "{…}" if is_dataclass(_hint_at(kind, wrong["loc"])) else "<value>"
        return f"{key} is not given, and has no default. Type: {key}={typed}"
    if wrong["type"] == _UNKNOWN:
        known = ", ".join(_path((*within, each)) for each in _written_hints(_hint_at(kind, within)))
        return f"{key}={value!r} is not known; valid are {known}. Remove the line"
    valid = wrong["msg"].removeprefix("Input should be ")
    as_list = "[<value>]" if value is None else f"[{value}]"
    examples = {"list_type": as_list, "dict_type": "{…}", "dataclass_type": "{…}"}
    return f"{key} is {value!r}; valid is {valid}. Type: {key}={examples.get(wrong['type'], '<value>')}"
