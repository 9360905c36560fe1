"""Values as Hydra reads them on a command line."""

from __future__ import annotations

import re
from pathlib import Path

_PLAIN = re.compile(r"[A-Za-z0-9_./@%+:-]+")


def hydra_value(text: str | Path) -> str:
    """The text, quoted where Hydra's grammar would otherwise read a list, a sweep or an error out of it."""
    plain = str(text)
    if _PLAIN.fullmatch(plain):
        return plain
    # In Hydra's quotes a backslash is itself, unless it stands before a quote.
    escaped = re.sub(r"(\\*)('|$)", lambda found: found[1] * 2 + ("\\'" if found[2] else ""), plain)
    return f"'{escaped}'"
