"""Algorithms that other packages name by an entry point, found without importing them."""

from importlib.metadata import EntryPoint, entry_points

GROUP = "grpo_verl_ext.algorithms"
"""The group of the entry points, ``NAME = "package.module:RECORD"``."""


def foreign_algorithms() -> tuple[EntryPoint, ...]:
    """Return the entry points of installed packages."""
    return tuple(entry_points(group=GROUP))


def presets_of(entry: EntryPoint) -> str:
    """Return the package whose folder ``algo`` has the preset of an entry point."""
    return f"{entry.module.partition('.')[0]}.config"
