"""Go through the parts of all rounds; what the manifest says is finished is not done again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from grpo_verl_ext.iterate.manifest import Manifest, RoundRecord, read_manifest
from grpo_verl_ext.iterate.plan import Round
from grpo_verl_ext.iterate.settings import IterateError, IterateSettings
from grpo_verl_ext.iterate.stages import PARTS, Context, Part
from grpo_verl_ext.runs.provenance import git_revision, versions
from grpo_verl_ext.utils.files import alone_in


class Progress(Protocol):
    """Who is told what happens."""

    def begin(self, this: Round, part: str) -> None:
        """A part begins."""

    def end(self) -> None:
        """It is finished and written down."""


def go(
    settings: IterateSettings,
    context: Context,
    progress: Progress,
    parts: Mapping[str, Part] = PARTS,
) -> Manifest:
    """Do what is not done yet, and return the whole manifest.

    Raises:
        IterateError: the folder belongs to other settings, or another process works in it.
    """
    folder = Path(settings.folder)
    folder.mkdir(parents=True, exist_ok=True)
    with alone_in(folder, IterateError):
        manifest = read_manifest(folder, settings.as_dict())
        for number in range(1, settings.rounds + 1):
            this = Round(settings, number)
            this.folder.mkdir(exist_ok=True)
            record = manifest.record(number, lambda this=this: new_record(this))  # type: ignore[misc]
            for name, part in parts.items():
                if name not in record.parts:
                    progress.begin(this, name)
                    record.parts[name] = part(this, context)
                    manifest.write(folder)
                    progress.end()
    return manifest


def new_record(this: Round) -> RoundRecord:
    """What a round begins with."""
    return RoundRecord(
        round=this.number,
        seed=this.seed,
        overrides=this.overrides(),
        git_revision=git_revision(),
        versions=versions(),
    )
