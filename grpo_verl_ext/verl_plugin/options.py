"""What somebody wrote under ``algorithm.grpo_ext``, and whether a value is a number."""

from collections.abc import Mapping
from typing import Any, TypeGuard

from grpo_verl_ext.verl_plugin.errors import SettingError

SECTION = "algorithm.grpo_ext"
LARGEST = 1e30
"""fp32 ends at 3.4e38."""


def grpo_ext(algorithm: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The section of verl's ``algorithm``; empty where it is null or not there.

    Raises:
        ValueError: it is no section, or ``algorithm`` is none.
    """
    if algorithm is None:
        return {}
    if not isinstance(algorithm, Mapping):
        raise SettingError(
            "algorithm", algorithm, valid="a section", fix=f"algorithm.adv_estimator={algorithm}"
        )
    return section(algorithm.get("grpo_ext"), SECTION)


def section(value: object, key: str) -> Mapping[str, Any]:
    """The value, empty if it is null.

    Raises:
        ValueError: it is no section.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise SettingError(key, value, valid="a section, or null", fix=f"{key}=null")
    return value


def is_number(value: object) -> TypeGuard[int | float]:
    """Is it finite, and in fp32, too? True and false are no numbers."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= LARGEST


def is_count(value: object) -> TypeGuard[int]:
    """Is it an integer ≥ 1 that a tensor can hold?"""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 2**63
