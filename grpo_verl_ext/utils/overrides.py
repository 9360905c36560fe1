"""Read the words of a command line of Hydra's: ``key=value``, ``+key=value``, ``++key=value``, ``~key``."""

from __future__ import annotations

import re

_WORD = re.compile(r"(?P<prefix>~|\+{0,2})(?P<key>[^=@\s]+)(?:@[^=\s]*)?(?:=.*)?", re.S)


def key_of(word: str) -> str:
    """Return the key of an override; of ``+algo@_global_=gvpo``, whose package is left out, ``algo``."""
    found = _WORD.fullmatch(word)
    return found["key"] if found else ""


def prefix_of(word: str) -> str:
    """Return what stands before the key: nothing, ``+``, ``++`` or ``~``."""
    found = _WORD.fullmatch(word)
    return found["prefix"] if found else ""
