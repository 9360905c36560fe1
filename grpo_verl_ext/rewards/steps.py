"""Steps of a response: those that a reward function reports, and the additions of chain_sum.

Beside ``score``, a reward function may return ``step_rewards``, a list of numbers, and ``step_ends``: for
each the characters of the decoded response up to and including the step. They are checked here, and the token
is found at which each step ends.
Additions of chain_sum such as ``7+2=9;`` are found and graded.
"""

import math
import re
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, pairwise, repeat
from typing import Any

from grpo_verl_ext.rewards.rules import correctness

KEYS = (REWARDS, ENDS) = "step_rewards", "step_ends"

_Decode = Callable[[Sequence[int]], str]
"""Token ids → text, as verl's reward managers decode: without special tokens."""


class StepRewardError(ValueError):
    """A reward function returned steps that do not fit the response."""


def step_end_tokens(reported: Mapping[str, Any], ids: Sequence[int], decode: _Decode) -> list[int]:
    """Return the position of each step's last token: the one that completes its characters, by bisection.

    A token that ends inside a character (bytes of one letter, half of an emoji) does not, and one that
    reaches beyond the end does; a special token that decodes to nothing completes nothing.
    """
    text = decode(ids)
    return [
        bisect_left(
            range(len(ids) - 1), True, key=lambda last: decode(ids[: last + 1]).startswith(text[:end])
        )
        for end in checked_ends(reported, len(text))
    ]


def pieces(response: str, ends: Sequence[int]) -> list[str]:
    """Return the response split after each number of characters, in order and each once, less the rest."""
    return [response[start:end] for start, end in pairwise([0, *sorted({*ends})])]


def checked_ends(reported: Mapping[str, Any], characters: int) -> list[int]:
    """Return where each step of a response of so many characters ends, or raise StepRewardError."""
    rewards, ends = reported.get(REWARDS), reported.get(ENDS)
    if rewards is None or ends is None:
        found = sorted({*KEYS} & reported.keys())
        raise StepRewardError(f"the reward function returned {found}; valid is {REWARDS} with {ENDS}")
    for name, values in ((REWARDS, rewards), (ENDS, ends)):
        if not hasattr(values, "__len__"):
            raise StepRewardError(f"{name} is {values!r}; valid is a list")
    if len(rewards) != len(ends):
        counted = f"{REWARDS} has {len(rewards)} entries and {ENDS} {len(ends)}"
        raise StepRewardError(f"{counted}; valid is one for one")
    for reward in rewards:
        try:
            finite = math.isfinite(reward)
        except (TypeError, OverflowError):
            finite = False
        if not finite:
            raise StepRewardError(f"{REWARDS} has {reward!r}; valid are finite numbers")
    for end in ends:
        if not (hasattr(end, "__index__") and 1 <= end <= characters):
            raise StepRewardError(f"{ENDS} has {end}; valid for this response is 1 … {characters}")
    return [int(end) for end in ends]


# Nine digits are more than any sum here has, and keep int() fast on anything a model writes.
_STEP = re.compile(r"(?<![0-9])([0-9]{1,9})\+([0-9]{1,9})=([0-9]{1,9});")


def step_rewards(
    solution_str: str, terms: Sequence[int], *, answer_is_right: bool
) -> tuple[list[float], list[int]]:
    """Return a reward for every addition written, 1 if right and 0 if not, and one for the answer.

    The second list has, for each, the characters up to and including its step; the answer is the last step
    and ends with the response. An empty response has no step.

    Additions count after the first ``<reasoning>``, up to ``</reasoning>`` or the end; any other text between
    them is skipped. Step k is right if it adds term k+2 to the first term (k = 0) or to the result written
    one step before, right or wrong, and the addition holds. So an error costs its own step and none after
    it, and an addition that the problem does not ask for earns nothing.
    """
    before, opened, rest = solution_str.partition("<reasoning>")
    rewards, ends, wanted = list[float](), list[int](), terms[0]
    additions = _STEP.finditer(rest.partition("</reasoning>")[0])
    for term, found in zip(chain(terms[1:], repeat(None)), additions, strict=False):
        left, right, result = map(int, found.groups())
        rewards.append(float((left, right, result) == (wanted, term, left + right)))
        ends.append(len(before) + len(opened) + found.end())
        wanted = result
    if solution_str:
        rewards.append(float(answer_is_right))
        ends.append(len(solution_str))
    return rewards, ends


def steps_reward(solution_str: str, terms: Sequence[int]) -> float:
    """Return the share of the additions needed for ``terms`` that are right, 0 … 1; 1 for a single term."""
    wanted = len(terms) - 1
    right = step_rewards(solution_str, terms, answer_is_right=False)[0]
    return sum(right) / wanted if wanted > 0 else 1.0


def compute_score(
    data_source: str,  # noqa: ARG001 - part of verl's signature
    solution_str: str,
    ground_truth: object,
    extra_info: Mapping[str, Any],
    **_: object,
) -> dict[str, Any]:
    """Return ``step_rewards`` and ``step_ends`` as `weighted_sum` does, and the answer's as ``score``.

    The terms are those of ``extra_info["prompt"]``, such as ``3+4+2=?``, for a rollout dump has no others.
    """
    found = re.search(r"([0-9](?:\+[0-9])*)=\?", extra_info["prompt"])
    if found is None:
        raise ValueError(f"the prompt {extra_info['prompt']!r} has no problem of chain_sum, such as 3+4+2=?")
    right = correctness(solution_str, ground_truth) > 0
    terms = [int(term) for term in found[1].split("+")]
    rewards, ends = step_rewards(solution_str, terms, answer_is_right=right)
    return {"score": float(right), "step_rewards": rewards, "step_ends": ends}
