"""Presets for verl's command line (``+algo=…``, ``+platform=cpu``, ``+task=chain_sum``): YAML deltas only."""

from collections.abc import Callable, Iterable, MutableMapping
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

_Record = TypeVar("_Record")


def foreign_algorithms() -> tuple[EntryPoint, ...]:
    """Return the entry points ``NAME = "package.module:RECORD"`` of installed packages' algorithms."""
    return tuple(entry_points(group="grpo_verl_ext.algorithms"))


def load_foreign(
    entries: Iterable[EntryPoint], load: Callable[[EntryPoint], _Record], failed: MutableMapping[str, str]
) -> tuple[_Record, ...]:
    """Load what other packages name; of one that fails, ``failed`` gets the name and why."""
    loaded = []
    for entry in entries:
        try:
            loaded.append(load(entry))
        except Exception as error:  # noqa: BLE001  # another package's fault must cost its own part alone
            failed[entry.name] = f"{entry.value} ({type(error).__name__}: {error})"
    return tuple(loaded)


def presets_of(entry: EntryPoint) -> Path:
    """Return the folder ``config`` of an entry point's package, whose ``algo/NAME.yaml`` is the preset."""
    package = find_spec(entry.module.partition(".")[0])
    locations = package.submodule_search_locations if package else None
    return Path(*list(locations or [])[:1]) / "config"
