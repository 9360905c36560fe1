"""Reward function for verl: reasoning-gym's own verifier of the task that a row came from.

The rows are those of ``reasoning_gym_data.py``; the preset ``+task=reasoning_gym`` names this file.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np

from grpo_verl_ext.rewards.rules import answer_of

_Verifier = Callable[[str | None, Mapping[str, Any]], float]
"""(answer or None, the task's entry) → 0 … 1."""

BEST = 1.0


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: object,
    extra_info: Mapping[str, Any] | None = None,
    **_: object,
) -> dict[str, float]:
    """Score the text between the last ``<answer>`` and ``</answer>``; without one, as no answer.

    Args:
        extra_info: the row's, with ``task``, ``config`` and ``entry``.

    Returns:
        ``score``, what the verifier says, at most 1; ``acc``, 1.0 where that is the best, 1; and
        ``verifier_raised``, 1.0 where the verifier raised an exception for this answer or said NaN or
        infinity: the score is then 0, and the first such case of a task is printed.

    Raises:
        ValueError: the row is not one of ``reasoning_gym_data.py``.
        ModuleNotFoundError: reasoning-gym is missing; the message has the line to type.
    """
    return _verdict(answer_of(solution_str), extra_info or {})


def score_whole_response(
    data_source: str,
    solution_str: str,
    ground_truth: object,
    extra_info: Mapping[str, Any] | None = None,
    **_: object,
) -> dict[str, float]:
    """Do the same for the whole response, stripped: for prompts that ask for the answer alone."""
    return _verdict(solution_str.strip(), extra_info or {})


def library() -> Any:
    """Return the package ``reasoning_gym``.

    Raises:
        ModuleNotFoundError: it is missing; the message has the line to type.
    """
    try:
        import reasoning_gym
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{error}. Type: pip install reasoning-gym") from error
    return reasoning_gym


def make_dataset(task: str, config: Mapping[str, Any], *, seed: int, size: int) -> Any:
    """Return reasoning-gym's dataset of a task; ``composite`` takes its ``datasets`` as dictionaries."""
    options = dict(config)
    if task == "composite":
        from reasoning_gym.composite import DatasetSpec

        options["datasets"] = [DatasetSpec(**each) for each in options.get("datasets", ())]
    return library().create_dataset(task, **options, seed=seed, size=size)


def _verdict(answer: str | None, extra_info: Mapping[str, Any]) -> dict[str, float]:
    try:
        task, config, entry = (extra_info[key] for key in ("task", "config", "entry"))
    except KeyError as error:
        raise ValueError(
            f"a row has no extra_info.{error.args[0]}; valid are rows that reasoning_gym_data.py has written"
        ) from error
    verifier = _verifier(task, config)
    try:
        # spell_backward adds ninths, 1.0000000000000002 together
        score, raised = min(BEST, _finite(verifier(answer, from_exact_text(entry)))), 0.0
    except Exception as error:  # noqa: BLE001  # a verifier may fail on what a model wrote
        _say_once(task, f"{type(error).__name__}: {error}")
        score, raised = 0.0, 1.0
    return {"score": score, "acc": float(score >= BEST), "verifier_raised": raised}


def _finite(score: float) -> float:
    if not math.isfinite(score):
        raise ValueError(f"the score {score}")
    return float(score)


@cache
def _verifier(task: str, config: str) -> _Verifier:
    verifier: _Verifier = make_dataset(task, from_exact_text(config), seed=0, size=1).score_answer
    return verifier


_said: set[str] = set()


def _say_once(task: str, what: str) -> None:
    if task not in _said:
        _said.add(task)
        print(
            f"warning: reasoning-gym's verifier of {task} raised {what}; such answers score 0 "
            "and are counted in verifier_raised",
            file=sys.stderr,
            flush=True,
        )


_TUPLE, _PAIRS, _FRACTION = "__tuple__", "__pairs__", "__fraction__"


def exact_text(value: object) -> str:
    """Return JSON that keeps tuples, fractions, and dictionaries whose keys are not text.

    Numpy's numbers and texts become Python's.

    Raises:
        TypeError: a value of another type.
    """
    return json.dumps(_plain(value), ensure_ascii=False)


def from_exact_text(text: str) -> Any:
    """Return what `exact_text` was given."""
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
