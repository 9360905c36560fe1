"""Sections of the configuration as pydantic models, whose first wrong value is one `SettingError`."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from grpo_verl_ext.utils.errors import SettingError

LARGEST = 1e30
"""Largest |value| of a numeric setting: products of settings must fit fp32, which ends at 3.4e38."""

VALID, EXAMPLE, WHY, FIX = "valid", "example", "why", "fix"
"""What a message needs to know of a field, in its ``json_schema_extra``."""


class Section(BaseModel):
    """A section whose keys all have defaults; unknown keys and converted types are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, validate_default=True)


_Model = TypeVar("_Model", bound=Section)


def option(  # the type of the field that it stands in for
    default: Any,
    description: str,
    valid: str | tuple[str, ...],
    example: str,
    *,
    why: str = "",
    fix: str = "",
    **constraints: Any,
) -> Any:
    """Return a field of a `Section`.

    Args:
        default: its value where the key is missing.
        description: one line for ``docs/settings.md``.
        valid: the valid values, or a description of them.
        example: a valid value as typed.
        why: what contradicts a wrong value; follows "…, but".
        fix: the line to type where the key is missing or null, if it is not ``key=example``.
        constraints: pydantic's, such as ``gt=0``.
    """
    said: dict[str, Any] = {VALID: valid, EXAMPLE: example, WHY: why, FIX: fix}
    return Field(default, description=description, json_schema_extra=said, **constraints)


def said_of(field: FieldInfo) -> Mapping[str, Any]:
    """Return what `option` was told of a field."""
    assert isinstance(field.json_schema_extra, dict)
    return field.json_schema_extra


def read(model: type[_Model], values: Mapping[str, Any] | None, prefix: str) -> _Model:
    """Return a section of the configuration, checked.

    Raises:
        SettingError: the first unknown key or wrong value.
    """
    plain: Any = OmegaConf.to_container(values) if isinstance(values, DictConfig) else dict(values or {})
    try:
        return model.model_validate(plain)
    except ValidationError as error:
        name = str(error.errors()[0]["loc"][0])
        raise _refused(model, name, plain.get(name), prefix) from None


def _refused(model: type[Section], name: str, value: object, prefix: str) -> SettingError:
    key = f"{prefix}.{name}"
    if name not in model.model_fields:
        near = get_close_matches(name, model.model_fields, n=1)
        fix = f"~{key} ++{prefix}.{near[0]}={value}" if near else f"~{key} to remove it"
        valid = tuple(model.model_fields)
        return SettingError(key, value, seen=f"{key}={value!r} is not an option", valid=valid, fix=fix)
    said = said_of(model.model_fields[name])
    line = (value is None and said[FIX]) or f"{key}={said[EXAMPLE]}"
    return SettingError(key, value, why=said[WHY], valid=said[VALID], fix=line)
