"""Checks the step rewards that a reward function returned, and finds the token at which each step ends.

Beside ``score``, a reward function may return ``step_rewards``, a list of numbers, and where each step ends:
``step_ends``, characters of the decoded response up to and including the step, or ``step_end_tokens``,
positions of last tokens.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

REWARDS, CHARACTER_ENDS, TOKEN_ENDS = "step_rewards", "step_ends", "step_end_tokens"
KEYS = (REWARDS, CHARACTER_ENDS, TOKEN_ENDS)

Decode = Callable[[Sequence[int]], str]
"""Token ids → text, as verl's reward managers decode: without special tokens."""


class StepRewardError(ValueError):
    """A reward function returned steps that do not fit the response."""


def step_end_tokens(reported: Mapping[str, Any], ids: Sequence[int], decode: Decode) -> list[int]:
    """Return the position of each step's last token.

    Raises:
        StepRewardError: rewards and ends differ in number, a reward is not a finite number, or a step ends
            outside the response.
    """
    key, ends = _checked(reported, len(decode(ids)), len(ids))
    return ends if key == TOKEN_ENDS else [last_token(decode, ids, end) for end in ends]


def step_end_characters(reported: Mapping[str, Any], ids: Sequence[int], decode: Decode) -> list[int]:
    """Return for each step the number of characters of the decoded response up to its end.

    A character of which a step has only the first bytes counts as part of it.

    Raises:
        StepRewardError: as `step_end_tokens`.
    """
    characters = len(decode(ids))
    key, ends = _checked(reported, characters, len(ids))
    if key == CHARACTER_ENDS:
        return ends
    return [min(len(decode(ids[: end + 1])), characters) for end in ends]


def pieces(response: str, ends: Sequence[int]) -> list[str]:
    """Cut the response after each end, in order and each once; text after the last end is left out.

    Args:
        ends: numbers of characters, 1 … len(response).
    """
    return [response[start:end] for start, end in pairwise([0, *sorted({*ends})])]


def _checked(reported: Mapping[str, Any], characters: int, tokens: int) -> tuple[str, list[int]]:
    """Return the reported ends and their key; ``characters`` and ``tokens`` are lengths of the response."""
    rewards = reported.get(REWARDS)
    key = CHARACTER_ENDS if CHARACTER_ENDS in reported else TOKEN_ENDS
    ends = reported.get(key)
    if rewards is None or ends is None:
        raise StepRewardError(
            f"the reward function returned {sorted(set(KEYS) & reported.keys())}; valid is {REWARDS} with "
            f"{CHARACTER_ENDS} or {TOKEN_ENDS}"
        )
    for name, values in ((REWARDS, rewards), (key, ends)):
        if not hasattr(values, "__len__"):
            raise StepRewardError(f"{name} is {values!r}; valid is a list")
    if len(rewards) != len(ends):
        raise StepRewardError(
            f"{REWARDS} has {len(rewards)} entries and {key} {len(ends)}; valid is one for one"
        )
    for reward in rewards:
        if not _is_finite(reward):
            raise StepRewardError(f"{REWARDS} has {reward!r}; valid are finite numbers")
    first, last = (1, characters) if key == CHARACTER_ENDS else (0, tokens - 1)
    for end in ends:
        if not (_is_integer(end) and first <= end <= last):
            raise StepRewardError(f"{key} has {end}; valid for this response is {first} … {last}")
    return key, [int(end) for end in ends]


def _is_finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except (TypeError, OverflowError):
        return False


def _is_integer(value: Any) -> bool:
    return hasattr(value, "__index__")


def last_token(decode: Decode, ids: Sequence[int], end: int) -> int:
    """Return the position of the token that completes the first ``end`` characters of the decoded response.

    Found by bisection on prefixes. A token that ends inside a character (bytes of one letter, half of an
    emoji) does not complete it; a special token that decodes to nothing completes nothing; a token that
    reaches beyond ``end`` does complete it.

    Args:
        decode: the function that decoded the reward function's text.
        ids: all tokens of the response.
        end: 1 … number of characters of the text.
    """
    wanted = decode(ids)[:end]
    too_few, enough = 0, len(ids)
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if decode(ids[:middle]).startswith(wanted):
            enough = middle
        else:
            too_few = middle
    return enough - 1
