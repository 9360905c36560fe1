"""Presets of algorithms, the CPU platform and tasks for verl's command line: YAML deltas only."""

from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path


def foreign_algorithms() -> dict[EntryPoint, Path]:
    """Return the entry points ``NAME = "package.module:RECORD"`` of installed packages' algorithms.

    Each comes with the folder ``config`` of its package, whose ``algo/NAME.yaml`` is the preset.
    """
    folders = {}
    for entry in entry_points(group="grpo_verl_ext.algorithms"):
        package = find_spec(entry.module.partition(".")[0])
        locations = package.submodule_search_locations if package else None
        folders[entry] = Path(*list(locations or [])[:1]) / "config"
    return folders
