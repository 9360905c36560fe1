"""Is the answer between ``<answer>`` and ``</answer>`` the wanted one?"""

from __future__ import annotations

import re
from decimal import Decimal

EXACT, EQUAL, WRONG = 2.0, 1.5, 0.0

# ASCII digits only, thousands commas allowed, and an exponent that Decimal can hold.
_NUMBER = re.compile(
    r"[+-]?(?:(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?"
)


def correctness(solution_str: str, ground_truth: object) -> float:
    """2.0 for the wanted answer to the letter, 1.5 for the same number written differently, else 0.

    White space around the answer does not count. ``14.0``, ``+14``, ``014`` and ``1.4e1`` are 14 written
    differently; ``nan``, ``inf`` and digits other than 0–9 are no numbers.

    Args:
        ground_truth: compared as ``str(ground_truth)``, so an int will do.
    """
    answer, wanted = answer_of(solution_str), str(ground_truth).strip()
    if answer is None:
        return WRONG
    if answer == wanted:
        return EXACT
    number = _number(answer)
    return EQUAL if number is not None and number == _number(wanted) else WRONG


def answer_of(solution_str: str) -> str | None:
    """The text between the last ``<answer>`` and the ``</answer>`` that follows it, stripped.

    The last, so that listing several answers gains nothing. None if there is no ``<answer>`` or the last
    one is never closed.
    """
    _, opened, rest = solution_str.rpartition("<answer>")
    answer, closed, _ = rest.partition("</answer>")
    return answer.strip() if opened and closed else None


def _number(text: str) -> Decimal | None:
    return Decimal(text.replace(",", "")) if _NUMBER.fullmatch(text) else None
