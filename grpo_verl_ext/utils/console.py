"""Print to a terminal, or in full width where the output goes into a pipe or a file."""

from __future__ import annotations

import io
import sys

from rich.console import Console
from rich.table import Table

UNLIMITED = 10_000
"""Columns of a console that is not a terminal."""


def print_any_character() -> None:
    """Let a terminal without Unicode show codes such as ``\\u2212`` in place of raising an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def make_console(*, at_least: int = 0) -> Console:
    """A console that never folds or cuts a line of text; paths can be copied whole.

    Args:
        at_least: columns that tables may use even if the terminal is narrower.
    """
    console = Console(soft_wrap=True, highlight=False)
    console.width = max(console.width, at_least) if console.is_terminal else UNLIMITED
    return console


def print_table(console: Console, table: Table) -> None:
    """The table and a blank line."""
    console.print(table)
    console.print()
