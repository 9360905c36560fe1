"""What a grid's folder keeps of its declaration: the copy of the grid, and when its runs were begun.

A declaration cannot change once a run has begun, not even when the records of its runs are removed: each
beginning is noted in ``<folder>.beginnings.json``, beside the folder.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from grpo_verl_ext.ablation.declaration.grid import (
    AblationError,
    GridRun,
    GridSettings,
    check_declaration,
    runs_of,
)
from grpo_verl_ext.utils.documents import Document, DocumentError, as_plain, from_plain, read_json
from grpo_verl_ext.utils.files import write_whole

GRID = "grid.json"
"""The copy of the grid in its folder."""


def keep_grid(settings: GridSettings) -> None:
    """Write the grid into its folder, for `read_kept_grid`, with the seeds of the runs that have begun there.

    Raises:
        AblationError: as `check_unchanged`.
    """
    folder = Path(settings.folder)
    folder.mkdir(parents=True, exist_ok=True)
    earlier = check_unchanged(settings)
    seeds = [*(earlier.seeds if earlier else []), *settings.seeds]
    kept = replace(settings, seeds=list(dict.fromkeys(seeds)))
    write_whole(folder / GRID, json.dumps(kept.as_dict(), indent=2) + "\n")


FIXED = (
    *("primary", "margin", "alpha", "starts", "expect", "checks", "control", "baseline", "right_above"),
    *("base", "axes", "steps", "seed_overrides"),
)
"""Keys that cannot change once a run of a grid with a declaration has begun."""


def check_unchanged(settings: GridSettings) -> GridSettings | None:
    """Refuse another declaration than that of the runs that have begun, removed or not, in the grid's folder.

    Returns:
        The grid of those that are there; None where there is none.

    Raises:
        AblationError: names the key, both values and what to type.
    """
    folder = Path(settings.folder)
    earlier = _grid_of_begun_runs(folder)
    if earlier is not None and not earlier.is_declared and settings.is_declared:
        raise AblationError(
            f"{folder} holds runs that were begun without a declaration: they stay exploratory, since "
            f"nothing can be declared once a run exists. Type folder=<another>"
        )
    if earlier is not None:
        before, what = _fixed(earlier, earlier.as_dict()["starts"]), "holds runs that were begun"
    else:
        beginnings = read_beginnings(folder)
        before = beginnings[-1].declared if beginnings else {}
        what = "held runs, since removed, that were begun"
    if earlier is None or earlier.is_declared:
        _check_same(before, settings, f"{folder} {what}")
    return earlier


def _grid_of_begun_runs(folder: Path) -> GridSettings | None:
    if not (folder / GRID).is_file():
        return None
    settings, runs = read_kept_grid(folder)
    return settings if any(run.training.folder.is_dir() for run in runs) else None


def _check_same(before: Mapping[str, Any], settings: GridSettings, begun: str) -> None:
    now = _fixed(settings, before.get("starts"))
    for key, noted in before.items():
        # earlier versions had no measure in expect
        value = [{"measure": None, **each} for each in noted] if key == "expect" else noted
        # some of the declared seeds may be trained alone, as on another machine
        if value != now[key] and not (key == "seeds" and {*now[key]} < {*value}):
            raise AblationError(
                f"{begun} with {key}: {json.dumps(value)}, and now it is {json.dumps(now[key])}; what is "
                f"declared cannot change once a run exists. Write it as it was, or type folder=<another>"
            )


def _fixed(settings: GridSettings, starts: Mapping[str, int] | None) -> dict[str, Any]:
    """The values that cannot change; of the seeds, those that verdicts may use."""
    values = settings.as_dict()
    return {key: values[key] for key in FIXED} | {
        "seeds": settings.seeds[: starts["most"]] if starts else settings.seeds
    }


@dataclass(frozen=True)
class Beginning(Document):
    """The start of a declared grid's first run, when no run of it was there."""

    declared: dict[str, Any]
    """The values that cannot change."""
    commit: str | None
    at: str
    """In UTC."""

    @property
    def declaration(self) -> str:
        """First 12 digits of the SHA-256 of the declared values."""
        text = json.dumps(self.declared, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def note_beginning(settings: GridSettings, commit: str | None, at: str) -> None:
    """Note that the first run of a declared grid begins, unless a run of it has left its folder.

    Raises:
        AblationError: the earlier notes cannot be read.
    """
    folder = Path(settings.folder)
    if _grid_of_begun_runs(folder) is None:
        declared = _fixed(settings, settings.as_dict()["starts"])
        noted = [*read_beginnings(folder), Beginning(declared, commit, at)]
        content = [as_plain(each) for each in noted]
        write_whole(_beginnings_file(folder), json.dumps(content, indent=2) + "\n")


def read_beginnings(folder: Path) -> list[Beginning]:
    """Read what `note_beginning` wrote beside the folder, the first beginning first.

    Raises:
        AblationError: the file is something else. It is left in place.
    """
    file = _beginnings_file(folder)
    try:
        return read_json(file, list[Beginning]) if file.exists() else []
    except (DocumentError, OSError) as error:
        raise AblationError(
            f"{file} does not say when the grid was begun ({error}). It was left in place; "
            f"type folder=<another>"
        ) from error


def _beginnings_file(folder: Path) -> Path:
    whole = folder.resolve()
    return whole.with_name(f"{whole.name}.beginnings.json")


def read_kept_grid(folder: Path) -> tuple[GridSettings, list[GridRun]]:
    """Read what `keep_grid` wrote into a folder, which may have been moved, and list its runs.

    Raises:
        AblationError: the file is something else. It is left in place.
    """
    file = folder / GRID
    try:
        content = read_json(file, dict[str, Any])
        settings = from_plain({**content, "folder": str(folder)}, GridSettings)
        runs = runs_of(settings)
        check_declaration(settings)
    except (ValueError, OSError) as error:
        raise AblationError(f"{file} is not a grid ({error}). It was left in place") from error
    return settings, runs
