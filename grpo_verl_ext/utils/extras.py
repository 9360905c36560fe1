"""The line to type where a package of one of this package's extras is missing."""

from __future__ import annotations


def line_to_install(extra: str) -> str:
    """Return the command; the package is on no index yet, so that it is typed in a checkout."""
    return f"pip install '.[{extra}]', in a checkout of grpo_verl_ext"
