"""Read YAML and JSON files into dataclasses that declare their keys and types; every error is one message.

pydantic and OmegaConf are imported when a file is read, for the command line must not wait for them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache
from inspect import formatannotation
from keyword import iskeyword
from pathlib import Path
from types import NoneType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    TextIO,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

if TYPE_CHECKING:
    from omegaconf import DictConfig
    from pydantic import TypeAdapter
    from pydantic_core import ErrorDetails
    from yaml import Node

_Kind = TypeVar("_Kind")


class DocumentError(ValueError):
    """The content of a file does not fit; the message is one reason, which a caller puts into its own."""


def _written_key(name: str) -> str:
    """Return the key of a field: the field of a key that is a Python keyword ends with an underscore."""
    return name[:-1] if name.endswith("_") and iskeyword(name[:-1]) else name


class Document:
    """Base of a dataclass that is read from a file: unknown keys are refused, and a field ``is_`` is ``is``.

    Dataclasses among its fields follow the same rules without this base. A dataclass alone, without the
    base, ignores keys that it does not declare.
    """

    __pydantic_config__: ClassVar[Any] = {
        "extra": "forbid",
        "alias_generator": _written_key,
        "coerce_numbers_to_str": True,
    }


def _new_adapter(kind: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


_adapter: Callable[[Any], TypeAdapter[Any]] = cache(_new_adapter)


def read_json(file: Path, kind: type[_Kind]) -> _Kind:
    """Read a JSON file; nothing is converted, for a program wrote it.

    Args:
        kind: a dataclass, or another type that pydantic knows, such as ``dict[str, Any]``.

    Raises:
        DocumentError: the content is not JSON, or a key is missing, unknown or of another type.
        OSError: there is no such file, or it cannot be read.
    """
    return parse_json(file.read_bytes(), kind)


def parse_json(content: bytes | str, kind: type[_Kind]) -> _Kind:
    """Do the same for JSON that has been read."""
    from pydantic import ValidationError

    try:
        return cast(_Kind, _adapter(kind).validate_json(content, strict=True))
    except ValidationError as wrong:
        raise DocumentError(_reason(wrong.errors(include_url=False)[0])) from wrong
    except (ValueError, OverflowError) as wrong:
        raise DocumentError(str(wrong)) from wrong


def parse_lines(
    file: Path,
    lines: Iterable[bytes],
    kind: type[_Kind],
    error: type[Exception],
    *,
    what: str,
    then: str = "",
) -> Iterator[_Kind]:
    """Parse lines of a file, each a JSON document.

    Args:
        what: what a line that does not fit is not, such as ``not a pair``.
        then: what to do about the file, for the message.

    Raises:
        error: a line does not fit; the message has file, line and reason.
    """
    for number, line in enumerate(lines, start=1):
        try:
            yield parse_json(line, kind)
        except DocumentError as wrong:
            raise error(f"{file}, line {number}, is {what} ({wrong}). It was left in place{then}") from wrong


def from_plain(content: object, kind: type[_Kind]) -> _Kind:
    """Make a dataclass from plain values, such as `as_plain` returns.

    Raises:
        DocumentError: as `parse_json`.
    """
    return parse_json(json.dumps(content), kind)


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
    return json.dumps(_finite(content), indent=2, ensure_ascii=False, allow_nan=False, default=str) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _reason(wrong: ErrorDetails) -> str:
    """Return key, value and what is wrong in one line."""
    key, value, kind = _path(wrong["loc"]), wrong["input"], wrong["type"]
    if kind in _MISSING:
        return f"{key!r} is missing"
    seen = f"a {type(value).__name__}" if kind.endswith("_type") else _short(value)
    if not key:
        return f"it is {seen}" if kind.endswith("_type") else wrong["msg"]
    return f"{key} is {seen}: {wrong['msg']}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"


def _path(location: Sequence[int | str]) -> str:
    """Return ``expect[0].is`` for ``("expect", 0, "is")``."""
    parts = (f"[{each}]" if isinstance(each, int) else f".{each}" for each in location)
    return "".join(parts).removeprefix(".")


def read_yaml(file: Path, kind: type[_Kind], error: type[Exception], overrides: Sequence[str] = ()) -> _Kind:
    """Read a YAML file, apply ``key=value`` overrides, and check every key and type.

    Keys, and values declared ``str``, are the text that was typed: ``on``, ``0.1`` and ``1e-6`` are not
    turned into Booleans and numbers there. ``${…}`` is resolved as OmegaConf does.

    Args:
        kind: a `Document` of values and further dataclasses.
        error: the exception to raise.

    Raises:
        error: no such file, invalid YAML, an unknown key, a missing value, or a value of the wrong type.
    """
    from pydantic import ValidationError

    try:
        content = _merged(file, kind, error, overrides)
        return cast(_Kind, _adapter(kind).validate_python(content))
    except ValidationError as wrong:
        # an unknown key first, for it may be a known one misspelt
        first = min(wrong.errors(include_url=False), key=lambda each: each["type"] not in _UNKNOWN)
        raise error(f"{file}: {_message(first, kind)}") from wrong
    except RecursionError as endless:
        raise error(
            f"{file} refers to itself without end. Remove the ${{…}} or the *alias that does"
        ) from endless
    except OverflowError as huge:
        raise error(f"{file} has a number that is too large ({huge}). Type a smaller one") from huge


def _merged(file: Path, kind: type, error: type[Exception], overrides: Sequence[str]) -> dict[str, Any]:
    """Return the plain values of the file and of the overrides, which win."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        with file.open(encoding="utf-8") as stream:
            loaded = _load(stream, kind)
        if not isinstance(loaded, dict | NoneType):
            raise ValueError(f"it holds no keys; valid are {', '.join(_written_hints(kind))}")
        parts = [OmegaConf.create(loaded or {}), _from_command_line(overrides, kind)]
    except (OSError, YAMLError, OmegaConfBaseException, ValueError) as unreadable:
        raise error(f"{file} cannot be read: {unreadable}") from unreadable
    try:
        merged = OmegaConf.merge(*parts)
        for missing in sorted(OmegaConf.missing_keys(merged)):
            raise error(f"{file}: {_not_given(missing)}")
        content = cast(dict[str, Any], OmegaConf.to_container(merged, resolve=True))
    except OmegaConfBaseException as wrong:
        for part in parts:
            _refuse_wrong_types(part, file, kind, error)
        key, reason = str(wrong.full_key or wrong.key), str(wrong.msg or wrong).splitlines()[0]
        raise error(f"{file}: {key}: {reason}. Type: {key}=<value>") from wrong
    for key, text in _texts(content):
        if "\0" in text:
            raise error(f"{file}: {key} is {text!r}; valid has no \\0. Type: {key}=<value>")
    return _with_sections(content, kind)


def _refuse_wrong_types(part: DictConfig, file: Path, kind: type, error: type[Exception]) -> None:
    """Refuse a value that is no section where one is declared, of the values that can be read alone."""
    from omegaconf import ListConfig, OmegaConf

    for name, hint in _written_hints(kind).items():
        value = None if OmegaConf.is_interpolation(part, name) else part.get(name)
        if isinstance(value, ListConfig) and get_origin(_without_none(hint)) is dict:
            raise error(f"{file}: {_wrong_type(name, [*value], _without_none(hint))}")


def _texts(value: object, *location: int | str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield _path(location), value
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield from _texts(each, *location, key)


def _with_sections(content: dict[str, Any], kind: type) -> dict[str, Any]:
    """Add the sections that are not there, so that an error names a key in them that has no default."""
    declared = get_type_hints(kind)
    required = [name for name, hint in declared.items() if is_dataclass(hint) and not hasattr(kind, name)]
    return {_written_key(name): {} for name in required} | content


def _from_command_line(overrides: Sequence[str], kind: type) -> DictConfig:
    """As ``OmegaConf.from_dotlist``, but text stays as it was typed."""
    from omegaconf import OmegaConf

    given = OmegaConf.create()
    for override in overrides:
        key, equals, text = override.partition("=")
        if key.startswith("["):
            raise ValueError(f"{override!r} does not start with a key. Type: <key>=<value>")
        hint = _hint_at(kind, key.split("."))
        OmegaConf.update(given, key, _load(text, hint) if equals else None)
    return given


_BOOL, _INT, _FLOAT, _TEXT, _MERGE = (
    f"tag:yaml.org,2002:{name}" for name in ("bool", "int", "float", "str", "merge")
)
_AS_TYPED = {str: (_BOOL, _INT, _FLOAT), int: (_BOOL,), float: (_BOOL,)}
"""Declared type → what YAML would see in the text, and what stays text: ``on`` is no number."""


def _load(source: str | TextIO, hint: Any) -> Any:
    from omegaconf._utils import get_yaml_loader  # what OmegaConf.load uses; it reads 1e-6 as a number

    loader = get_yaml_loader()(source)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _keep_text(node, hint)
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _keep_text(node: Node, hint: Any) -> None:
    """Mark keys, and scalars that the hint declares as text, as strings before YAML constructs them."""
    from yaml import MappingNode, ScalarNode, SequenceNode

    hint = _without_none(hint)
    if isinstance(node, ScalarNode) and node.tag in _AS_TYPED.get(hint, ()):
        node.tag = _TEXT
    elif isinstance(node, SequenceNode):
        for index, each in enumerate(node.value):
            _keep_text(each, _hint_of(hint, index))
    elif isinstance(node, MappingNode):
        for key, value in node.value:
            if isinstance(key, ScalarNode) and key.tag != _MERGE:
                key.tag = _TEXT
            merged = key.tag == _MERGE
            _keep_text(value, hint if merged else _hint_of(hint, str(key.value)))


def _written_hints(kind: type) -> dict[str, Any]:
    """Return the type hints of a dataclass by the keys that a file has."""
    return {
        _written_key(name): hint
        for name, hint in get_type_hints(kind).items()
        if get_origin(hint) is not ClassVar
    }


def _without_none(hint: Any) -> Any:
    """Return ``X`` of ``X | None``."""
    others = [each for each in get_args(hint) if each is not NoneType]
    return others[0] if NoneType in get_args(hint) and len(others) == 1 else hint


def _hint_of(hint: Any, key: int | str) -> Any:
    """Return the type declared for a key of a dataclass or ``dict``, or for an element of a ``list``."""
    hint = _without_none(hint)
    if isinstance(key, int):
        return get_args(hint)[0] if get_origin(hint) is list else Any
    if is_dataclass(hint):
        return _written_hints(cast(type, hint)).get(key, Any)
    return get_args(hint)[1] if get_origin(hint) is dict else Any


def _hint_at(hint: Any, location: Iterable[int | str]) -> Any:
    for key in location:
        hint = _hint_of(hint, key)
    return _without_none(hint)


_MISSING = ("missing", "missing_argument")
_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
_NO_NUMBER = {int: "Integer", float: "Float"}


def _not_given(key: str) -> str:
    return f"{key} is not given, and has no default. Type: {key}=<value>"


def _message(wrong: ErrorDetails, kind: type) -> str:
    """Return key, value seen, valid values and the line to type."""
    *within, _ = location = wrong["loc"]
    key, value = _path(location), wrong["input"]
    if wrong["type"] in _MISSING:
        return _not_given(key)
    if wrong["type"] in _UNKNOWN:
        known = ", ".join(_path((*within, each)) for each in _written_hints(_hint_at(kind, within)))
        return f"{key}={value!r} is not known; valid are {known}. Remove the line"
    if wrong["type"].startswith(("greater_than", "less_than")):
        return f"{key} is {value}: {wrong['msg']}. Type: {key}=<value>"
    return _wrong_type(key, value, _hint_at(kind, location))


def _wrong_type(key: str, value: object, hint: Any) -> str:
    if is_dataclass(hint) or get_origin(hint) is dict:
        return f"{key} is {value!r}; valid is a section, such as {key}: {{…}}"
    if get_origin(hint) is list and is_dataclass(get_args(hint)[0]):
        return f"{key} is {value!r}; valid are sections, such as {key}: [{{…}}]"
    if get_origin(hint) is list:
        typed = "…" if isinstance(value, dict) else value
        return f"{key} is {value!r}; valid is {formatannotation(hint)}. Type: '{key}=[{typed}]'"
    if get_origin(hint) is Literal:
        return f"{key} is {value!r}; valid are {', '.join(get_args(hint))}. Type: {key}=<one of them>"
    if hint in _NO_NUMBER:
        return (
            f"{key}: Value {str(value)!r} of type {type(value).__name__!r} could not be converted to "
            f"{_NO_NUMBER[hint]}. Type: {key}=<value>"
        )
    return f"{key} is {value!r}; valid is {formatannotation(hint)}. Type: {key}=<value>"
