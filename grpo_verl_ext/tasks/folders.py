"""Make a folder with a manifest, complete or not at all, and find it again only if nothing has changed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_verl_ext.utils.files import appearing, locked, move_aside, sha256
from grpo_verl_ext.utils.typed_json import PARSE_ERRORS, typed

MANIFEST, TRAIN, TEST = "manifest.json", "train.parquet", "test.parquet"
AGAIN = "It is left in place; to move it aside and make it again, add --force"


class PreparedFolderError(ValueError):
    """A folder cannot be made, or is not the one that was asked for; the message says what to do."""


@dataclass(frozen=True)
class Outcome:
    """The result of `make`.

    Attributes:
        made: False if the folder was there already and nothing was done.
        found: what the builder returned when it was made.
        moved_aside: new path of the folder that ``force`` replaced.
    """

    folder: Path
    made: bool
    found: Mapping[str, Any]
    moved_aside: Path | None


def make(
    folder: Path,
    settings: Mapping[str, Any],
    build: Callable[[Path], Mapping[str, Any]],
    *,
    force: bool,
    on_wait: Callable[[], None] = lambda: None,
) -> Outcome:
    """Make the folder, or do nothing if it is there with the same settings.

    Args:
        settings: all that the content depends on, as JSON has it.
        build: fills a folder, and returns what the manifest is to say of it.
        on_wait: called once if another process is making the same folder, before waiting for it.

    Raises:
        PreparedFolderError: the folder is there but damaged or of other settings, and ``force`` is off.
    """
    with locked(folder, on_wait=on_wait):
        if folder.exists() and not force:
            manifest = checked(folder)
            if manifest["settings"] != settings:
                raise PreparedFolderError(
                    f"{folder} was made with other settings ({manifest['settings']}) than these "
                    f"({settings}). {AGAIN}"
                )
            return Outcome(folder, made=False, found=manifest["found"], moved_aside=None)
        aside = move_aside(folder) if folder.exists() else None
        with appearing(folder) as unfinished:
            found = build(unfinished)
            _write_manifest(unfinished, settings, found)
        return Outcome(folder, made=True, found=found, moved_aside=aside)


def checked(folder: Path) -> dict[str, Any]:
    """Compare every file with the manifest, and return that.

    Raises:
        PreparedFolderError: the folder is missing, or a file in it is missing or changed; nothing is touched.
    """
    if not folder.is_dir():
        raise PreparedFolderError(f"{folder}: no such folder")
    try:
        manifest = typed(
            json.loads((folder / MANIFEST).read_bytes()),
            {"settings": dict[str, Any], "found": dict[str, Any], "sha256": dict[str, str]},
        )
    except (*PARSE_ERRORS, OSError) as error:
        raise PreparedFolderError(f"{folder / MANIFEST} is not a manifest ({error}). {AGAIN}") from error
    for name, wanted in manifest["sha256"].items():
        if not (folder / name).is_file() or sha256(folder / name) != wanted:
            raise PreparedFolderError(f"{folder / name} is missing or was changed. {AGAIN}")
    return manifest


def _write_manifest(folder: Path, settings: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    digests = {path.relative_to(folder).as_posix(): sha256(path) for path in files}
    manifest = {"settings": settings, "found": found, "sha256": digests}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
