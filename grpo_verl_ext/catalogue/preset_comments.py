"""Read which comment of a preset's file is the source of which value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import yaml

OURS = "ours"
"""Begins the comment of a value that is not the paper's."""


def comments_of(text: str) -> dict[str, str]:
    """Return dotted key → the comment that gives its source.

    That is the comment above it; without one, that of the key before it in the same section, or of the
    section. A comment of ours says nothing of the keys that follow it.
    """
    root = yaml.compose(text)
    assert isinstance(root, yaml.MappingNode)
    found = _in_section(root, "", "", text.splitlines())
    return {key: comment for key, comment in found if comment}


def _in_section(
    section: yaml.MappingNode, name: str, above: str, lines: Sequence[str]
) -> Iterator[tuple[str, str]]:
    for key, value in section.value:
        comment = _comment_over(key.start_mark.line, lines)
        if comment or above.startswith(OURS):
            above = comment
        if isinstance(value, yaml.MappingNode):
            yield from _in_section(value, f"{name}{key.value}.", above, lines)
        else:
            yield f"{name}{key.value}", above


def _comment_over(line: int, lines: Sequence[str]) -> str:
    """Return the lines of comment that end above a line, as one text."""
    first = line
    while first > 0 and lines[first - 1].lstrip().startswith("#"):
        first -= 1
    return " ".join(each.strip().lstrip("# ") for each in lines[first:line])
