"""Record of the finished parts: ``manifest.json``, rewritten atomically after each of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from grpo_verl_ext.iterate.settings import IterateError
from grpo_verl_ext.utils.documents import Document, DocumentError, read_json
from grpo_verl_ext.utils.files import write_whole

FORMAT = 1
NAME = "manifest.json"

Results = dict[str, Any]
"""Results of a finished part, as plain JSON."""


@dataclass
class RoundRecord:
    """The record of one round.

    Attributes:
        overrides: verl's command line.
        parts: results of the finished parts, in order.
    """

    round: int
    seed: int
    overrides: list[str]
    git_revision: str | None
    versions: dict[str, str]
    parts: dict[str, Results] = field(default_factory=dict)


@dataclass
class Manifest(Document):
    """Settings and rounds; without times, so that a run that was killed and resumed has the same manifest."""

    settings: dict[str, Any]
    rounds: list[RoundRecord] = field(default_factory=list)
    format: int = FORMAT

    def write(self, folder: Path) -> None:
        """Replace the file."""
        write_whole(folder / NAME, json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n")

    def record(self, number: int, new: Callable[[], RoundRecord]) -> RoundRecord:
        """Return the record of a round; ``new`` makes it when the round begins."""
        if len(self.rounds) < number:
            self.rounds.append(new())
        return self.rounds[number - 1]

    def finished(self, number: int, part: str) -> bool:
        """Whether this part of this round is done."""
        return len(self.rounds) >= number and part in self.rounds[number - 1].parts


def read_manifest(folder: Path, settings: dict[str, Any]) -> Manifest:
    """Return the folder's manifest, or a new one.

    Only ``rounds`` may differ from the settings with which it was begun: more rounds continue the run.

    Raises:
        IterateError: it cannot be read, or it was begun with other settings.
    """
    file = folder / NAME
    if not file.exists():
        return Manifest(settings)
    try:
        manifest = read_json(file, Manifest)
    except DocumentError as error:
        raise IterateError(
            f"{file} is not a manifest ({error}). It was left in place; type folder=<a new folder>"
        ) from error
    if manifest.format != FORMAT:
        raise IterateError(
            f"{file} has format {manifest.format}, this version reads {FORMAT}; type folder=<a new folder>"
        )
    changed = [key for key in _differences(manifest.settings, settings) if key != "rounds"]
    if changed:
        raise IterateError(
            f"{file} was begun with another {changed[0]}: {_lookup(manifest.settings, changed[0])!r} there, "
            f"{_lookup(settings, changed[0])!r} now. Type folder=<a new folder>, or the old value"
        )
    manifest.settings = settings
    return manifest


def _differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[str]:
    found = []
    for key in {**old, **new}:
        here, there = old.get(key), new.get(key)
        if isinstance(here, dict) and isinstance(there, dict):
            found += _differences(here, there, f"{prefix}{key}.")
        elif here != there:
            found.append(f"{prefix}{key}")
    return found


def _lookup(values: Any, dotted: str) -> Any:
    for key in dotted.split("."):
        values = values.get(key) if isinstance(values, dict) else None
    return values
