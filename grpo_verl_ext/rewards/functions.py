"""Reward functions of your own by name: ``my_package.rewards.f``, or ``path/to/file.py:f``.

They have verl's signature, ``f(data_source, solution_str, ground_truth, extra_info)``, and return a number,
or a dictionary with a number ``score`` and perhaps ``acc`` and more numbers.
"""

import importlib
import importlib.util
import math
import sys
from collections.abc import Callable, Mapping
from functools import cache
from numbers import Real
from pathlib import Path
from typing import Any

from grpo_verl_ext.rewards import steps
from grpo_verl_ext.utils.files import module_file

LARGEST_SCORE = 1e15
"""An estimator cannot use larger rewards: their squares overflow fp32."""


def is_function(name: str) -> bool:
    """Whether the name can be that of a function: it has a dot, or a colon after a file."""
    where, colon, function = _parts(name)
    is_place = bool(where) if colon else all(map(str.isidentifier, where.split(".")))
    return function.isidentifier() and is_place


def reported_name(name: str) -> str:
    """Return the name of the function in metrics: ``path/to/file.py:f`` is ``file.f``; others stay."""
    where, colon, function = _parts(name)
    return f"{Path(where).stem}.{function}" if colon else name


def file_of(name: str) -> Path | None:
    """Return the file of the function's module; None where there is none here."""
    where, colon, _ = _parts(name)
    return Path(where) if colon else module_file(where)


@cache
def load_function(name: str) -> Callable[..., object]:
    """Import the function; ValueError if its code fails, or, caused by an ImportError, if it is missing."""
    where, colon, attribute = _parts(name)
    try:
        if colon:
            file = Path(where)
            module_name = f"grpo_verl_ext_reward_{file.resolve().as_posix()}"
            spec = importlib.util.spec_from_file_location(module_name, file)
            if spec is None or spec.loader is None or not file.is_file():
                raise ImportError(f"{file} is not a Python file")
            module = importlib.util.module_from_spec(spec)
            sys.modules[module_name] = module  # dataclasses look their module up there
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(where)
        function = getattr(module, attribute)
    except Exception as error:
        raise ValueError(
            f"the reward function {name!r} cannot be loaded ({type(error).__name__}: {error}); valid is "
            "my_package.rewards.f or path/to/file.py:f"
        ) from error
    if not callable(function):
        raise ValueError(f"the reward function {name!r} is a {type(function).__name__}")
    return function  # type: ignore[no-any-return]  # callable() does not tell the type


def as_number(value: Any) -> float | None:
    """Return a number, a bool, or one element of numpy or torch as a float; None for all else."""
    value = value.item() if getattr(value, "ndim", None) == 0 else value
    try:
        return float(value) if isinstance(value, Real) else None
    except OverflowError:
        return math.inf


def checked_result(result: Mapping[str, Any], function: str) -> dict[str, Any]:
    """Return a reward manager's result with Python numbers; ValueError if verl could not use it.

    verl loses a response whose score is not finite, and a reported list ends its validation.
    """
    score, report = as_number(result["reward_score"]), dict(result.get("reward_extra_info") or {})
    said = f"the reward function {function}"
    if score is None or not math.isfinite(score):
        found = result["reward_score"]
        raise ValueError(f"{said} returned {found!r:.200} ({type(found).__name__}); valid is a finite number")
    for key, value in report.items():
        if isinstance(value, int | float | str | None) or key in steps.KEYS:
            continue
        if (found := as_number(value)) is None:
            raise ValueError(f"{said} reports {key}={value!r:.200}; valid are numbers, and texts: str(…)")
        report[key] = found
    if "reward" in report:
        raise ValueError(f"{said} reports 'reward', by which verl names the score; give it another name")
    return {**result, "reward_score": score, "reward_extra_info": report}


def _parts(name: str) -> tuple[str, str, str]:
    """Return module or file, the colon behind a file, and the function's name."""
    where, colon, function = name.rpartition(":")
    if colon:
        return where, colon, function
    where, _, function = name.rpartition(".")
    return where, "", function
