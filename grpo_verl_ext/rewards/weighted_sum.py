"""Reward function for verl: a weighted sum of rewards, each reported under its own name.

verl's ``reward.custom_reward_function`` names it by ``path=pkg://grpo_verl_ext.rewards.weighted_sum`` and
``name=compute_score``, and ``reward_kwargs`` has the weights (docs/rewards.md).

verl takes ``score`` for the reward and filters groups by any key. In validation each becomes
``val-aux/<data_source>/<key>/mean@N``, and ``acc`` the main result, ``val-core/<data_source>/acc/mean@N``.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from numbers import Integral
from typing import Any

from grpo_verl_ext.rewards import functions
from grpo_verl_ext.rewards.rules import correctness, format_reward
from grpo_verl_ext.rewards.steps import step_rewards as rewards_of_steps
from grpo_verl_ext.rewards.steps import steps_reward

_Reward = Callable[[str, object, Mapping[str, Any]], float]
"""(response, ground truth, verl's ``extra_info``) → reward units."""

_DEFAULT_WEIGHTS: Mapping[str, float] = {"correctness": 1.0, "format": 1.0}

_PASSED_BY_VERL = ("reward_router_address", "reward_model_tokenizer")
"""Extra arguments that verl's reward managers pass when there is a reward model, for your own functions."""


def _terms(extra_info: Mapping[str, Any]) -> list[int]:
    terms: Any = extra_info.get("terms")
    if hasattr(terms, "__len__") and len(terms) and all(isinstance(each, Integral) for each in terms):
        return [int(each) for each in terms]
    there = f"has {terms!r}" if "terms" in extra_info else f"has only {sorted(extra_info)}"
    raise ValueError(
        f"the reward 'steps' needs extra_info.terms in the data; a row {there}; valid are integers, one at "
        "least. Leave it out with ~reward.custom_reward_function.reward_kwargs.weights.steps"
    )


REWARDS: Mapping[str, _Reward] = {
    "correctness": lambda solution_str, ground_truth, _: correctness(solution_str, ground_truth),
    "format": lambda solution_str, ground_truth, _: format_reward(solution_str, ground_truth),
    "steps": lambda solution_str, _, extra_info: steps_reward(solution_str, _terms(extra_info)),
}


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: object,
    extra_info: Mapping[str, Any] | None = None,
    *,
    weights: Mapping[str, float] = _DEFAULT_WEIGHTS,
    step_rewards: bool = False,
    **passed_by_verl: object,
) -> dict[str, Any]:
    """Score one response; no response makes a named reward raise.

    Args:
        data_source: for your own functions; the named rewards are the same for all sources.
        extra_info: the row's ``extra_info``; ``steps`` needs its ``terms``, ``gold`` its ``response``.
        weights: name of a reward → its factor in ``score``: ``correctness``, ``format``, ``steps``, or a
            function of your own, ``my_package.rewards.f`` or ``path/to/file.py:f`` (`functions`).
        step_rewards: also return the rewards of the single steps, for process supervision.

    Returns:
        ``score`` = Σ weight × reward; ``acc``, the first that a function returns, else 1.0 for a right
        answer, or, if your own function is the only reward, its number; each reward without its weight;
        ``gold``, 1.0 if the response is ``extra_info["response"]``; with ``step_rewards`` also ``steps``, and
        both lists of `steps.step_rewards`.
    """
    check_weights(weights)
    if unknown := sorted(passed_by_verl.keys() - {*_PASSED_BY_VERL}):
        key = f"reward.custom_reward_function.reward_kwargs.{unknown[0]}"
        raise ValueError(f"{key} is not known; valid keys are 'weights' and 'step_rewards', so type ~{key}")
    row = extra_info or {}
    asked = {"solution_str": solution_str, "ground_truth": ground_truth, "extra_info": row}
    asked |= {"data_source": data_source, **passed_by_verl}
    right = correctness(solution_str, ground_truth) > 0
    names = dict.fromkeys([*weights, *(["steps"] if step_rewards else [])])
    result = _scored(weights, names, asked, right=right)
    if isinstance(gold := row.get("response"), str):
        result["gold"] = float(solution_str == gold)  # verl decodes without special tokens
    if step_rewards:
        rewards, ends = rewards_of_steps(solution_str, _terms(row), answer_is_right=right)
        result |= {"step_rewards": rewards, "step_ends": ends}
    return result


def _scored(
    weights: Mapping[str, float], names: Iterable[str], asked: Mapping[str, Any], *, right: bool
) -> dict[str, Any]:
    """Return ``score``, ``acc``, each named reward, and each function's numbers behind its name.

    A function is called with ``asked``, verl's arguments; ValueError: it returns no number as ``score``, or
    another ``acc`` than one.
    """
    reports, largest = dict[str, dict[str, float]](), functions.LARGEST_SCORE
    for name in names:
        if name in REWARDS:
            texts = asked["solution_str"], asked["ground_truth"]
            reports[name] = {"score": REWARDS[name](*texts, asked["extra_info"])}
            continue
        returned = functions.load_function(name)(**asked)
        report: Mapping[Any, Any] = returned if isinstance(returned, Mapping) else {"score": returned}
        numbers = {key: functions.as_number(value) for key, value in report.items()}
        own = {key: x for key, x in numbers.items() if x is not None and abs(x) <= largest}
        if "score" not in own or (report.get("acc") is not None and "acc" not in own):
            raise ValueError(
                f"the reward function {name!r} returned {returned!r:.200} ({type(returned).__name__}); valid "
                f"is a finite number of at most {largest:g}, or a dictionary with one as 'score'"
            )
        reports[name] = own
    result = {"score": math.fsum(weight * reports[name]["score"] for name, weight in weights.items())}
    known = [each["acc"] for each in reports.values() if "acc" in each]
    if "correctness" in weights or weights.keys() <= REWARDS.keys():
        known.append(float(right))
    elif len(reports) == 1:  # as verl does with a function's number
        known += [each["score"] for each in reports.values()]
    result |= {"acc": known[0]} if known else {}
    for name, own in reports.items():
        said = functions.reported_name(name)
        more = {f"{said}.{key}": value for key, value in own.items() if key not in ("score", "acc")}
        result |= {said: own["score"], **more}
    return result


def reported_names(function: Mapping[str, Any]) -> list[str] | None:
    """Return the names of the numbers that are reported, ``gold`` perhaps; None where that is not known.

    ``function`` is verl's section ``reward.custom_reward_function``; functions of your own may report more.
    """
    given = function.get("reward_kwargs") or {}
    weights = given.get("weights", _DEFAULT_WEIGHTS)
    of_ours = (function.get("path"), function.get("name")) == (f"pkg://{__name__}", compute_score.__name__)
    if not of_ours or not isinstance(weights, Mapping) or weights.keys() - REWARDS.keys():
        return None
    steps = ["steps"] if given.get("step_rewards") else []
    return list(dict.fromkeys([*weights, *steps, "acc", "score", "gold"]))


def check_weights(weights: Mapping[str, float]) -> None:
    """Refuse weights of unknown rewards, and weights that are not finite; no function is loaded."""
    key = "reward.custom_reward_function.reward_kwargs.weights"
    line = f"'+{key}={{correctness: 1.0, format: 1.0}}'"
    if not isinstance(weights, Mapping) or not weights:
        raise ValueError(f"{key}={weights!r} names no reward; valid names are {sorted(REWARDS)}; type {line}")
    for name, weight in weights.items():
        if name not in REWARDS and not (isinstance(name, str) and functions.is_function(name)):
            raise ValueError(
                f"{key} names {name!r}; valid names are {sorted(REWARDS)}, and functions such as "
                f"my_package.rewards.f or path/to/file.py:f; type {line}"
            )
        is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not is_number or not abs(weight) <= functions.LARGEST_SCORE:
            raise ValueError(
                f"{key}.{name}={weight!r} is not a finite number of at most {functions.LARGEST_SCORE:g}; "
                f"type +{key}.{name}=1.0"
            )
    reported = sorted(map(functions.reported_name, weights.keys() - REWARDS.keys()))
    for name, following in pairwise(reported):
        if name == following:
            raise ValueError(f"{key} names two functions that would both be reported as {name}; rename one")
