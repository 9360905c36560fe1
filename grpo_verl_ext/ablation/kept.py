"""What a grid's folder keeps of its declaration: the copy of the grid, and when its runs were begun.

A declaration cannot change once a run has begun, not even when the records of its runs are removed: each
beginning is noted in ``<folder>.beginnings.json``, beside the folder.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from grpo_verl_ext.ablation.grid import AblationError, GridRun, GridSettings, read_kept
from grpo_verl_ext.utils.documents import Document, DocumentError, as_plain, read_json
from grpo_verl_ext.utils.files import write_whole

GRID = "grid.json"
"""The copy of the grid in its folder."""
FIXED = (
    *("primary", "margin", "alpha", "starts", "expect", "checks", "control", "baseline"),
    *("base", "axes", "steps", "seed_overrides"),
)
"""Keys that cannot change once a run of a grid with a declaration has begun."""


def keep_grid(settings: GridSettings) -> None:
    """Write the grid into its folder, for `read_kept_grid`, with the seeds of the runs begun there."""
    folder = Path(settings.folder)
    folder.mkdir(parents=True, exist_ok=True)
    earlier = check_unchanged(settings)
    seeds = [*(earlier.seeds if earlier else []), *settings.seeds]
    kept = replace(settings, seeds=list(dict.fromkeys(seeds)))
    write_whole(folder / GRID, json.dumps(kept.as_dict(), indent=2) + "\n")


def read_kept_grid(folder: Path) -> tuple[GridSettings, list[GridRun]]:
    """Read what `keep_grid` wrote into a folder, which may have been moved, and list its runs."""
    try:
        return read_kept(read_json(folder / GRID, dict[str, Any]), folder)
    except (ValueError, OSError) as error:
        raise AblationError(f"{folder / GRID} is not a grid ({error}). It was left in place") from error


def check_unchanged(settings: GridSettings) -> GridSettings | None:
    """Refuse another declaration than that of the runs that have begun, removed or not, in the grid's folder.

    Returns:
        The grid of those that are there; None where there is none.
    """
    folder = Path(settings.folder)
    earlier = _grid_of_begun_runs(folder)
    if earlier is not None and not earlier.is_declared:
        if settings.is_declared:
            raise AblationError(
                f"{folder} holds runs that were begun without a declaration: they stay exploratory, since "
                f"nothing can be declared once a run exists. Type folder=<another>"
            )
        return earlier
    if earlier is not None:
        before, begun = _fixed(earlier), f"{folder} holds runs that were begun"
    else:
        beginnings = read_beginnings(folder)
        before = beginnings[-1].declared if beginnings else {}
        begun = f"{folder} held runs, since removed, that were begun"
    now = _fixed(settings)
    if before.get("starts"):
        now["seeds"] = settings.seeds[: before["starts"]["most"]]
    for key, value in before.items():
        # some of the declared seeds may be trained alone, as on another machine
        if value != now.get(key) and not (key == "seeds" and {*now[key]} < {*value}):
            raise AblationError(
                f"{begun} with {key}: {json.dumps(value)}, and now it is {json.dumps(now.get(key))}; what is "
                f"declared cannot change once a run exists. Write it as it was, or type folder=<another>"
            )
    return earlier


def _grid_of_begun_runs(folder: Path) -> GridSettings | None:
    if not (folder / GRID).is_file():
        return None
    settings, runs = read_kept_grid(folder)
    return settings if any(run.training.folder.is_dir() for run in runs) else None


def _fixed(settings: GridSettings) -> dict[str, Any]:
    """The values that cannot change; of the seeds, those that verdicts may use."""
    values = settings.as_dict()
    return {key: values[key] for key in FIXED} | {"seeds": settings.usable}


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
    """Note that the first run of a declared grid begins, unless a run of it has left its folder."""
    folder = Path(settings.folder)
    if _grid_of_begun_runs(folder) is None:
        noted = [*read_beginnings(folder), Beginning(_fixed(settings), commit, at)]
        write_whole(_beginnings_file(folder), json.dumps([as_plain(each) for each in noted], indent=2) + "\n")


def read_beginnings(folder: Path) -> list[Beginning]:
    """Read what `note_beginning` wrote beside the folder, the first beginning first."""
    file = _beginnings_file(folder)
    try:
        return read_json(file, list[Beginning]) if file.exists() else []
    except (DocumentError, OSError) as error:
        raise AblationError(
            f"{file} does not say when the grid was begun ({error}). It was left in place; "
            f"type folder=<another>"
        ) from error


def _beginnings_file(folder: Path) -> Path:
    return folder.resolve().with_name(f"{folder.resolve().name}.beginnings.json")
