"""Sections of the configuration as pydantic models, whose first wrong value is one `SettingError`."""

from collections.abc import Mapping
from difflib import get_close_matches
from inspect import formatannotation, isclass
from itertools import chain
from typing import Annotated, Any, TypeGuard, TypeVar, get_args, get_origin

from omegaconf import DictConfig, OmegaConf
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from grpo_verl_ext.utils.errors import Line, SettingError

_LARGEST = 1e30
"""Largest |value| of a numeric setting: products of settings must fit fp32, which ends at 3.4e38."""

Number = Annotated[int | float, Field(ge=-_LARGEST, le=_LARGEST)]
"""A number that stays as it was typed, for messages say it again."""
PositiveFloat = Annotated[float, Field(gt=0, le=_LARGEST)]
"""A number that becomes a float, for torch refuses integers above int64."""
NonNegative = Annotated[float, Field(ge=0, le=_LARGEST)]
Count = Annotated[int, Field(ge=1, lt=2**63)]
"""An integer ≥ 1 that fits int64."""
Text = Annotated[str, Field(min_length=1)]


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether the value is a number (not a bool) of at most `_LARGEST` in size."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST


def is_count(value: object) -> TypeGuard[int]:
    """Whether the value is an integer ≥ 1 that fits int64."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 2**63


_Model = TypeVar("_Model", bound="Section")


class Section(BaseModel):
    """A section whose keys all have defaults; unknown keys and converted types are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, validate_default=True)

    @classmethod
    def read(cls: type[_Model], values: Mapping[str, Any] | None, prefix: str) -> _Model:
        """Return a section of the configuration; its first unknown key or wrong value is a `SettingError`."""
        plain: Any = dict(values or {})
        if isinstance(values, DictConfig):
            plain = OmegaConf.to_container(values, resolve=True, throw_on_missing=True)
        try:
            return cls.model_validate(plain)
        except ValidationError as error:
            raise _refused(cls, plain, error.errors()[0]["loc"], prefix) from None

    @classmethod
    def all_keys(cls, prefix: str) -> dict[str, tuple[type["Section"], str]]:
        """Return the keys of this section and of those in it, with the section and the name of each."""
        found: dict[str, tuple[type[Section], str]] = {}
        for name, field in cls.model_fields.items():
            found[f"{prefix}{name}"] = (cls, name)
            if (inner := _section_in(field)) is not None:
                found |= inner.all_keys(f"{prefix}{name}.")
        return found

    @classmethod
    def said(cls, name: str) -> Mapping[str, Any]:
        """Return what `option` was told of a field, or the field's type tells."""
        field = cls.model_fields[name]
        said = field.json_schema_extra
        assert isinstance(said, dict)
        if said["valid"]:
            return said
        if _section_in(field) is not None:
            return said | {"valid": "a section, or null", "example": "null"}
        kinds = get_args(field.annotation)  # of a union, or the names of a ``Literal``
        words = ("true", "false") if field.annotation is bool else chain(kinds, *map(get_args, kinds))
        names = tuple(each for each in words if isinstance(each, str))
        return said | {
            "valid": names or formatannotation(field.annotation),
            "example": (*names, "<value>")[0],
        }


def option(  # the type of the field that it stands in for
    default: Any,
    description: str,
    valid: str | tuple[str, ...] = "",
    example: str = "",
    *,
    why: str = "",
    fix: str = "",
    **constraints: Any,
) -> Any:
    """Return a field of a `Section`.

    Args:
        description: one line for ``docs/settings.md``.
        valid: the valid values, or a description of them; without, what the field's type says: the names of
            a ``Literal``, true and false, or a section.
        example: a valid value as typed; without, the first of the valid ones.
        why: what contradicts a wrong value; follows "…, but".
        fix: the line to type where the key is missing or null, if it is not ``key=example``.
    """
    said: dict[str, Any] = {"valid": valid, "example": example, "why": why, "fix": fix}
    return Field(default, description=description, json_schema_extra=said, **constraints)


def _section_in(field: FieldInfo) -> type[Section] | None:
    """Return the model of the section that a field holds."""
    hints = (each for each in (field.annotation, *get_args(field.annotation)) if get_origin(each) is None)
    return next((each for each in hints if isclass(each) and issubclass(each, Section)), None)


def _refused(
    model: type[Section], values: Mapping[str, Any], location: tuple[int | str, ...], prefix: str
) -> SettingError:
    name, *within = map(str, location)
    key, value = f"{prefix}.{name}", values.get(name)
    if name not in model.model_fields:
        near = get_close_matches(name, model.model_fields, n=1)
        fix = Line(f"~{key}", f"++{prefix}.{near[0]}={value}") if near else f"~{key} to remove it"
        valid = tuple(model.model_fields)
        return SettingError(key, value, seen=f"{key}={value!r} is not an option", valid=valid, fix=fix)
    field = model.model_fields[name]
    section = _section_in(field)
    if section is not None and within:
        return _refused(section, value or {}, tuple(within), key)
    said = model.said(name)
    line = Line(f"{key}={said['example']}")
    # a placeholder such as <value> is for a reader alone
    fix = (value is None and said["fix"]) or (str(line) if set("<…") & set(line) else line)
    return SettingError(key, value, why=said["why"], valid=said["valid"], fix=fix)
