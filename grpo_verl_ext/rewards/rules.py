"""Rewards by rule: the right answer between ``<answer>`` and ``</answer>``, and the tags of the format."""

import re
from decimal import Decimal

TAGS = ("<reasoning>", "</reasoning>", "<answer>", "</answer>")

# Digits 0–9, points and commas, with an exponent if one follows: a candidate for a number.
_RUN = re.compile(r"[0-9.,]+(?:[eE][+-]?[0-9]+)?")
# Thousands commas allowed, and an exponent that Decimal can hold.
_NUMBER = re.compile(r"(?:(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
_CURRENCY = "$€£¥₹"
_SIGNS = "+-−"
_NOT_EQUAL = ("!", "<", ">", "~")
# What may stand directly before a number, after a space or a colon: brackets, quotes, a currency, a sign.
_LEAD = re.compile(rf"(?:^|[\s:])([(\[{{'\"{_CURRENCY}{re.escape(_SIGNS)}]*)\Z")
_PUNCTUATION = frozenset(f".,;:()[]{{}}'\"%°{_CURRENCY}")
# English words that change the number.
_CHANGED = re.compile(
    r"\b(?:not|minus|negative|half|dozens?|hundreds?|thousands?|millions?|billions?|trillions?)\b", re.I
)


def correctness(solution_str: str, ground_truth: object) -> float:
    """Return 2.0 for the wanted answer to the letter, 1.5 for the same number written differently, else 0.

    White space around the answer does not count. `number_in` reads the number of the answer and of the ground
    truth, which may be an int: ``14.0``, ``$14``, ``14 apples`` and ``x = 14`` are 14 written differently.
    """
    answer, wanted = answer_of(solution_str), str(ground_truth).strip()
    if answer is None:
        return 0.0
    if answer == wanted:
        return 2.0
    number = number_in(answer)
    return 1.5 if number is not None and number == number_in(wanted) else 0.0


def format_reward(solution_str: str, _ground_truth: object = None) -> float:
    """Return 0.2 for each of the four tags that occurs at least once, 0.8 at most; order does not count."""
    return 0.2 * sum(tag in solution_str for tag in TAGS)


def answer_of(solution_str: str) -> str | None:
    """Return the text between the last ``<answer>`` and the ``</answer>`` that follows it, stripped.

    The last one counts, so that listing several answers gains nothing. None if there is no ``<answer>`` or
    the last one is never closed.
    """
    _, opened, rest = solution_str.rpartition("<answer>")
    answer, closed, _ = rest.partition("</answer>")
    return answer.strip() if opened and closed else None


def number_in(text: str) -> Decimal | None:
    """Return the one number that the text gives, after its ``=`` if there is one; None where in doubt.

    - 14: ``14``, ``14.0``, ``+14``, ``014``, ``1.4e1``, ``14.``, ``(14)``, ``$14``, ``14 €``, ``14%``,
      ``14 apples``, ``The answer is 14.``, ``x = 14``, ``7 + 7 = 14``
    - -14: ``-14``, ``−14``, ``-$14``, ``$-14``, ``x = -14``
    - 1400: ``1400``, ``1,400``, ``$1,400.00``
    - None, not a number: ``fourteen``, ``nan``, ``14 = x``, ``１４`` (digits other than 0–9)
    - None, several: ``13 or 14``, ``14, 14``, ``7 + 7``, ``28/2``, ``1 400``, ``1,4``, ``x = 14, y = 15``,
      ``x = 7 + 7 = 14``
    - None, part of a word or formula: ``14kg``, ``14k``, ``x14``, ``sqrt(14)``, ``2x - 14``, ``14!``,
      ``~14``, ``x < 14``, ``x != 14``
    - None, changed by a word: ``14 million``, ``minus 14``, ``not 14``

    Units are not compared, and ``%`` is one: ``14%`` is 14, not 0.14. No other words are read.
    """
    before, equals, behind = text.partition("=")
    if equals:
        text = "" if before.endswith(_NOT_EQUAL) else behind
    run = next((run for run in _RUN.finditer(text) if run[0].strip(".,")), None)
    if run is None or _CHANGED.search(text):
        return None
    left, right = text[: run.start()], text[run.end() :]
    lead, number = _LEAD.search(left), run[0].rstrip(".,")
    if lead is None or right[:1].isalpha() or not _NUMBER.fullmatch(number):
        return None
    signs = "".join(mark for mark in lead[1] if mark in _SIGNS)
    # A second number, or a second "=", fails the test for plain text.
    around = left[: lead.start(1)] + right
    is_plain = all(mark.isalpha() or mark.isspace() or mark in _PUNCTUATION for mark in around)
    if len(signs) > 1 or not is_plain:
        return None
    # The sign goes in as text: Decimal's own minus would round to 28 digits.
    return Decimal(signs.replace("−", "-") + number.replace(",", ""))
