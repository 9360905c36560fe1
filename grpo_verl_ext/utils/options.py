"""Sections of the configuration as pydantic models, whose first wrong value is one `SettingError`."""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from inspect import formatannotation, isclass
from itertools import chain
from typing import Annotated, Any, TypeGuard, TypeVar, get_args, get_origin

from omegaconf import DictConfig, OmegaConf
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from grpo_verl_ext.utils.errors import Line, SettingError
from grpo_verl_ext.utils.left import LEFT

_LARGEST = 1e30
"""Largest |value| of a numeric setting: products of settings must fit fp32, which ends at 3.4e38."""

Number = Annotated[int | float, Field(ge=-_LARGEST, le=_LARGEST)]
"""A number that stays as it was typed, for messages say it again."""
PositiveFloat = Annotated[float, Field(gt=0, le=_LARGEST)]
"""A number that becomes a float, for torch refuses integers above int64."""
Count = Annotated[int, Field(ge=1, lt=2**63)]
"""An integer ≥ 1 that fits int64."""
Text = Annotated[str, Field(min_length=1)]


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether the value is a number (not a bool) of at most `_LARGEST` in size."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST


def is_count(value: object) -> TypeGuard[int]:
    """Whether the value is an integer ≥ 1 that fits int64."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 2**63


class Section(BaseModel):
    """A section whose keys all have defaults; unknown keys and converted types are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, validate_default=True)


_Model = TypeVar("_Model", bound=Section)


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


def said_of(field: FieldInfo) -> Mapping[str, Any]:
    """Return what `option` was told of a field, or the field's type tells."""
    said = field.json_schema_extra
    assert isinstance(said, dict)
    if said["valid"]:
        return said
    if section_in(field) is not None:
        return said | {"valid": "a section, or null", "example": "null"}
    words = (("true", "false") if each is bool else (each,) for each in _parts(field.annotation))
    names = tuple(each for each in chain(*words) if isinstance(each, str))
    return said | {"valid": names or formatannotation(field.annotation), "example": (*names, "<value>")[0]}


def section_in(field: FieldInfo) -> tuple[type[Section], bool] | None:
    """Return the model of the section that a field holds, and whether it holds one for each of many names."""
    hints = [*_parts(field.annotation)]
    models = (each for each in hints if get_origin(each) is None and isclass(each))
    model = next((each for each in models if issubclass(each, Section)), None)
    by_name = any(get_origin(each) is Mapping for each in hints)
    return None if model is None else (model, by_name)


def keys_of(model: type[Section], prefix: str) -> Iterator[str]:
    """Yield the keys of a section and of the sections in it, but not of those to which a user gives names."""
    for name, field in model.model_fields.items():
        yield f"{prefix}.{name}"
        section, by_name = section_in(field) or (None, False)
        if section is not None and not by_name:
            yield from keys_of(section, f"{prefix}.{name}")


def _parts(hint: Any) -> Iterator[Any]:
    yield hint
    for each in get_args(hint):
        yield from _parts(each)


def read_section(model: type[_Model], values: Mapping[str, Any] | None, prefix: str) -> _Model:
    """Return a section of the configuration; its first unknown key or wrong value is a `SettingError`."""
    plain: Any = dict(values or {})
    if isinstance(values, DictConfig):
        plain = OmegaConf.to_container(values, resolve=True, throw_on_missing=True)
    try:
        return model.model_validate(plain)
    except ValidationError as error:
        raise _refused(model, plain, error.errors()[0]["loc"], prefix) from None


def _refused(
    model: type[Section], values: Mapping[str, Any], location: tuple[int | str, ...], prefix: str
) -> SettingError:
    name, *within = map(str, location)
    key, value = f"{prefix}.{name}", values.get(name)
    if name in LEFT and name not in model.model_fields:
        gone = f"{key} has left. Use instead: {LEFT[name]}"
        return SettingError(key, value, seen=gone, fix=Line(without=(key,), more="the same without it"))
    if name not in model.model_fields:
        near = get_close_matches(name, model.model_fields, n=1)
        fix = Line(f"~{key}", f"++{prefix}.{near[0]}={value}") if near else f"~{key} to remove it"
        valid = tuple(model.model_fields)
        return SettingError(key, value, seen=f"{key}={value!r} is not an option", valid=valid, fix=fix)
    field = model.model_fields[name]
    section, by_name = section_in(field) or (Section, False)
    names, within = within[:by_name], within[by_name:]
    if section is not Section and within not in ([], ["[key]"]):  # pydantic's word for a key that is wrong
        for each in names:
            key, value = f"{key}.{each}", values[name][each]
        return _refused(section, value or {}, tuple(within), key)
    said = said_of(field)
    line = Line(f"{key}={said['example']}")
    # a placeholder such as <value> is for a reader alone
    fix = (value is None and said["fix"]) or (str(line) if set("<…") & set(line) else line)
    return SettingError(key, value, why=said["why"], valid=said["valid"], fix=fix)
