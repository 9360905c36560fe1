"""YAML files whose keys and types a dataclass declares; whatever is wrong is refused in one message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import is_dataclass
from inspect import formatannotation
from pathlib import Path
from typing import Any, TypeVar, cast, get_type_hints

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from grpo_verl_ext.utils.typed_json import is_a

Settings = TypeVar("Settings")


def read_typed_yaml(
    file: Path, overrides: Sequence[str], kind: type[Settings], error: type[Exception]
) -> Settings:
    """Read the file and let ``key=value`` of the command line win.

    Args:
        kind: a dataclass of values and further dataclasses; fields without a default are ``MISSING``.

    Raises:
        error: no such file, no YAML, an unknown key, a missing value or one of another type.
    """
    try:
        return _read(file, overrides, kind, error)
    except RecursionError as endless:
        raise error(f"{file} refers to itself without end. Remove the ${{…}} that does") from endless


def _read(file: Path, overrides: Sequence[str], kind: type[Settings], error: type[Exception]) -> Settings:
    try:
        written = OmegaConf.merge(OmegaConf.load(file), OmegaConf.from_dotlist(list(overrides)))
    except (OSError, YAMLError, OmegaConfBaseException, ValueError) as unreadable:
        raise error(f"{file} cannot be read: {unreadable}") from unreadable
    content = OmegaConf.to_container(written)
    if not isinstance(content, dict):
        raise error(f"{file} holds no keys; valid are {', '.join(get_type_hints(kind))}")
    _refuse_unknown(content, kind, "", file, error)
    try:
        merged = OmegaConf.merge(OmegaConf.structured(kind), written)
        for key in sorted(OmegaConf.missing_keys(merged)):
            raise error(f"{file}: {key} is not given, and has no default. Type: {key}=<value>")
        settings = cast(Settings, OmegaConf.to_object(merged))
    except OmegaConfBaseException as wrong:
        key = wrong.full_key or wrong.key
        reason = str(wrong.msg or wrong).splitlines()[0]
        raise error(f"{file}: {key}: {reason}. Type: {key}=<value>") from wrong
    _refuse_wrong_types(settings, "", file, error)
    return settings


def _refuse_unknown(
    content: dict[Any, Any], kind: type, prefix: str, file: Path, error: type[Exception]
) -> None:
    valid = get_type_hints(kind)
    for key, value in content.items():
        if key not in valid:
            raise error(
                f"{file}: {prefix}{key}={value!r} is not known; valid are "
                f"{', '.join(prefix + name for name in valid)}. Remove the line"
            )
        if is_dataclass(valid[key]):
            if not isinstance(value, dict):
                raise error(f"{file}: {prefix}{key} is {value!r}; valid is a section, such as {key}: {{…}}")
            _refuse_unknown(value, valid[key], f"{prefix}{key}.", file, error)


def _refuse_wrong_types(settings: Any, prefix: str, file: Path, error: type[Exception]) -> None:
    """What OmegaConf lets pass: lists and sections among the elements of lists and sections."""
    for key, hint in get_type_hints(type(settings)).items():
        value = getattr(settings, key)
        if is_dataclass(value):
            _refuse_wrong_types(value, f"{prefix}{key}.", file, error)
        elif isinstance(value, str) and "\0" in value:
            raise error(f"{file}: {prefix}{key} is {value!r}; valid has no \\0. Type: {prefix}{key}=<value>")
        elif not is_a(value, hint):
            raise error(
                f"{file}: {prefix}{key} is {value!r}; valid is {formatannotation(hint)}. "
                f"Type: {prefix}{key}=<value>"
            )
