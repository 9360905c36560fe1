"""Text of unknown origin, made harmless to look at."""

from __future__ import annotations

import unicodedata

_KEPT = "\n\t"


def visible(text: str) -> str:
    """Characters that act instead of showing are named: control, direction, surrogates, private ones.

    HTML's own characters are left to the template's escaping.
    """
    return "".join(_named(character) for character in text)


def _named(character: str) -> str:
    if character in _KEPT or not unicodedata.category(character).startswith("C"):
        return character
    return f"⟨U+{ord(character):04X}⟩"
