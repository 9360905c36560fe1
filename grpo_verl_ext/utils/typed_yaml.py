"""Read a YAML file into a dataclass that declares its keys and types; every error is one message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import is_dataclass
from inspect import formatannotation
from pathlib import Path
from types import NoneType
from typing import Any, TextIO, TypeVar, cast, get_args, get_origin, get_type_hints

from omegaconf import DictConfig, OmegaConf
from omegaconf._utils import get_yaml_loader  # what OmegaConf.load uses; it reads 1e-6 as a number
from omegaconf.errors import OmegaConfBaseException
from yaml import MappingNode, Node, ScalarNode, SequenceNode, YAMLError

from grpo_verl_ext.utils.typed_json import field_name, is_a, without_none, written_hints, written_key

Settings = TypeVar("Settings")


def read_typed_yaml(
    file: Path, overrides: Sequence[str], kind: type[Settings], error: type[Exception]
) -> Settings:
    """Read the file, apply ``key=value`` overrides, and check every key and type.

    Keys, and values declared ``str``, are the text that was typed: ``on``, ``0.1`` and ``1e-6`` are not
    turned into Booleans and numbers there.

    Args:
        kind: a dataclass of values and further dataclasses; fields without a default are ``MISSING``.

    Raises:
        error: no such file, invalid YAML, an unknown key, a missing value, or a value of the wrong type.
    """
    try:
        return _read(file, overrides, kind, error)
    except RecursionError as endless:
        raise error(
            f"{file} refers to itself without end. Remove the ${{…}} or the *alias that does"
        ) from endless


def _read(file: Path, overrides: Sequence[str], kind: type[Settings], error: type[Exception]) -> Settings:
    try:
        with file.open(encoding="utf-8") as stream:
            loaded = _load(stream, kind)
        if not isinstance(loaded, dict | NoneType):
            raise ValueError(f"it holds no keys; valid are {', '.join(written_hints(kind))}")
        written = [OmegaConf.create(loaded or {}), _from_command_line(overrides, kind)]
    except (OSError, YAMLError, OmegaConfBaseException, ValueError) as unreadable:
        raise error(f"{file} cannot be read: {unreadable}") from unreadable
    parts = [OmegaConf.to_container(part) for part in written]
    for part in parts:
        _check_shape(part, kind, "", file, error)
    try:
        merged = OmegaConf.merge(
            OmegaConf.structured(kind), *(_with_field_names(part, kind) for part in parts)
        )
        for missing in sorted(OmegaConf.missing_keys(merged)):
            key = _written_path(missing)
            raise error(f"{file}: {key} is not given, and has no default. Type: {key}=<value>")
        settings = cast(Settings, OmegaConf.to_object(merged))
    except OmegaConfBaseException as wrong:
        reason = str(wrong.msg or wrong).splitlines()[0]
        if not (wrong.full_key or wrong.key):
            raise error(f"{file}: {reason}. Write a section without ${{…}}") from wrong
        key = _written_path(str(wrong.full_key or wrong.key))
        raise error(f"{file}: {key}: {reason}. Type: {key}=<value>") from wrong
    _refuse_wrong_types(settings, "", file, error)
    return settings


def _from_command_line(overrides: Sequence[str], kind: type) -> DictConfig:
    """As ``OmegaConf.from_dotlist``, but text stays as it was typed."""
    given = OmegaConf.create()
    for override in overrides:
        key, equals, text = override.partition("=")
        hint: Any = kind
        for name in key.split("."):
            hint = _hint_of(hint, name)
        OmegaConf.update(given, key, _load(text, hint) if equals else None)
    return given


BOOL, INT, FLOAT, TEXT, MERGE = (
    f"tag:yaml.org,2002:{name}" for name in ("bool", "int", "float", "str", "merge")
)


def _load(source: str | TextIO, hint: Any) -> Any:
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
    hint = without_none(hint)
    if isinstance(node, ScalarNode) and hint is str and node.tag in (BOOL, INT, FLOAT):
        node.tag = TEXT
    elif isinstance(node, SequenceNode):
        for each in node.value:
            _keep_text(each, get_args(hint)[0] if get_origin(hint) is list else Any)
    elif isinstance(node, MappingNode):
        for key, value in node.value:
            if isinstance(key, ScalarNode) and key.tag != MERGE:
                key.tag = TEXT
            merged = key.tag == MERGE
            _keep_text(value, hint if merged else _hint_of(hint, str(key.value)))


def _hint_of(hint: Any, key: str) -> Any:
    """The type declared for a key of a dataclass or a ``dict``."""
    hint = without_none(hint)
    if is_dataclass(hint):
        return written_hints(hint).get(key, Any)
    return get_args(hint)[1] if get_origin(hint) is dict else Any


def _with_field_names(value: Any, hint: Any) -> Any:
    """The value with the names of fields for keys, which differ where a key is a Python keyword."""
    hint = without_none(hint)
    if isinstance(value, list):
        inner = get_args(hint)[0] if get_origin(hint) is list else Any
        return [_with_field_names(each, inner) for each in value]
    if not isinstance(value, dict):
        return value
    named = field_name if is_dataclass(hint) else str
    return {named(key): _with_field_names(each, _hint_of(hint, key)) for key, each in value.items()}


def _written_path(path: str) -> str:
    """The path of a field, such as ``expect[0].is_``, as it is written in the file."""
    return ".".join(written_key(name) for name in path.split("."))


def _check_shape(value: Any, hint: Any, name: str, file: Path, error: type[Exception]) -> None:
    """Refuse unknown keys, and values where a list or a section is declared."""
    hint = without_none(hint)
    if value is None or (isinstance(value, str) and (value == "???" or value.startswith("${"))):
        return  # OmegaConf says what is missing or cannot be resolved
    if is_dataclass(hint) or get_origin(hint) is dict:
        if not isinstance(value, dict):
            raise error(f"{file}: {name} is {value!r}; valid is a section, such as {name}: {{…}}")
        for key, each in value.items():
            inner = f"{name}.{key}" if name else key
            if is_dataclass(hint) and key not in (valid := written_hints(hint)):
                known = ", ".join(f"{name}.{other}" if name else other for other in valid)
                raise error(f"{file}: {inner}={each!r} is not known; valid are {known}. Remove the line")
            _check_shape(each, _hint_of(hint, key), inner, file, error)
    elif get_origin(hint) is list and not isinstance(value, list):
        if is_dataclass(get_args(hint)[0]):
            raise error(f"{file}: {name} is {value!r}; valid are sections, such as {name}: [{{…}}]")
        typed = "…" if isinstance(value, dict) else value
        raise error(
            f"{file}: {name} is {value!r}; valid is {formatannotation(hint)}. Type: '{name}=[{typed}]'"
        )
    elif get_origin(hint) is list:
        for index, each in enumerate(value):
            _check_shape(each, get_args(hint)[0], f"{name}[{index}]", file, error)


def _refuse_wrong_types(settings: Any, prefix: str, file: Path, error: type[Exception]) -> None:
    """Refuse what OmegaConf lets pass: lists and sections among the elements of lists, another section."""
    for key, hint in get_type_hints(type(settings)).items():
        value = getattr(settings, key)
        if not is_a(value, hint):
            raise error(
                f"{file}: {prefix}{key} is {value!r}; valid is {formatannotation(hint)}. "
                f"Type: {prefix}{key}=<value>"
            )
        if isinstance(value, str) and "\0" in value:
            raise error(f"{file}: {prefix}{key} is {value!r}; valid has no \\0. Type: {prefix}{key}=<value>")
        if is_dataclass(value):
            _refuse_wrong_types(value, f"{prefix}{key}.", file, error)
        elif isinstance(value, list) and all(map(is_dataclass, value)):
            for index, each in enumerate(value):
                _refuse_wrong_types(each, f"{prefix}{key}[{index}].", file, error)
