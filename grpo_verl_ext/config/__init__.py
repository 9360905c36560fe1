"""Presets for verl's command line (``+algo=…``, ``+platform=cpu``, ``+task=chain_sum``): YAML deltas only."""

from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path

_GROUP = "grpo_verl_ext.algorithms"
"""The group of other packages' entry points, ``NAME = "package.module:RECORD"``."""


def foreign_algorithms() -> tuple[EntryPoint, ...]:
    """Return the entry points of installed packages."""
    return tuple(entry_points(group=_GROUP))


def presets_of(entry: EntryPoint) -> Path:
    """Return the folder ``config`` of an entry point's package, whose ``algo/NAME.yaml`` is the preset."""
    package = find_spec(entry.module.partition(".")[0])
    locations = package.submodule_search_locations if package else None
    return Path(*list(locations or [])[:1]) / "config"
