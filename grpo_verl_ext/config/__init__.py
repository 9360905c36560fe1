"""Presets for verl's command line (``+algo=…``, ``+platform=cpu``, ``+task=chain_sum``): YAML deltas only."""

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
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


@contextmanager
def noted(entry: EntryPoint, failed: MutableMapping[str, str]) -> Iterator[None]:
    """Add to ``failed`` the name of another package's part, and why, where the block that loads it fails."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  # another package's fault must cost its own part alone
        failed[entry.name] = f"{entry.value} ({type(error).__name__}: {error})"
