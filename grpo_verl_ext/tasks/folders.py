"""Prepared folders: rows as verl reads them, and a manifest by which a folder is found again.

A folder is made complete or not at all, and is used only if nothing in it has changed. Imports neither torch
nor transformers, so that the check before a run costs milliseconds.
"""

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_verl_ext.utils.console import say
from grpo_verl_ext.utils.files import appearing, locked, sha256

_MANIFEST, TRAIN, TEST = "manifest.json", "train.parquet", "test.parquet"


class PreparedFolderError(ValueError):
    """A folder cannot be made, or is not the one that was asked for; the message says what to do."""


@dataclass(frozen=True)
class PreparedOutcome:
    """The result of `PreparedFolder.make`; ``moved_aside`` is the folder that ``force`` replaced.

    ``manifest.json`` has ``settings``, all that the folder depends on; ``sha256``, path inside the folder →
    digest, for each file but the manifest; and what ``build`` returned.
    """

    folder: Path
    manifest: dict[str, Any]
    made: bool
    moved_aside: Path | None = None

    def words(self, *lines: str) -> str:
        """Return what was done, with further lines about it, for a terminal."""
        first = "made" if self.made else "already there, nothing to do"
        kept = [f"what was there before is kept in {self.moved_aside}"] if self.moved_aside else []
        return "\n".join([f"{first}: {self.folder}", *(f"  {line}" for line in lines), *kept])


@dataclass(frozen=True)
class PreparedFolder:
    """Where a prepared folder is, or is to be.

    The line ``command`` makes it, and the setting ``key`` names it, for messages. A folder of another
    ``format``, the version of the layout and the manifest, has to be made again.
    """

    path: Path
    command: str | None = None
    key: str | None = None
    format: int | None = None

    def make(
        self, settings: Mapping[str, Any], build: Callable[[Path], Mapping[str, Any]], *, force: bool
    ) -> PreparedOutcome:
        """Make the folder, or do nothing if it is there with the same settings.

        ``build`` fills a folder under another name, which is renamed when it is complete, and returns the
        manifest's other fields. Of two processes the second waits and then finds the work done. With
        ``force`` it is made in any case, and then the old one gets another name; it stays in its place if
        that fails. Without it a folder that is damaged or of other settings is refused.
        """
        if self.path.exists() and not force:  # another user's, perhaps, and not to be locked
            return PreparedOutcome(self.path, self.check(settings), made=False)
        with locked(self.path, on_wait=lambda: say(f"waiting: another process is preparing {self.path}")):
            if self.path.exists() and not force:
                return PreparedOutcome(self.path, self.check(settings), made=False)
            now = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
            aside = Path(f"{self.path}.old-{now}-{os.getpid()}") if self.path.exists() else None
            with appearing(self.path, aside=aside) as unfinished:
                layout = {} if self.format is None else {"format": self.format}
                manifest = {"settings": dict(settings), **layout, **build(unfinished)}
                files = sorted(each for each in unfinished.rglob("*") if each.is_file())
                names = [each.relative_to(unfinished).as_posix() for each in files]
                manifest["sha256"] = dict(zip(names, map(sha256, files), strict=True))
                text = json.dumps(manifest, indent=2) + "\n"
                (unfinished / _MANIFEST).write_text(text, encoding="utf-8")
            return PreparedOutcome(self.path, json.loads(text), made=True, moved_aside=aside)

    def check(self, settings: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Compare every file with the manifest, and ``settings`` with those it was made with; return it."""
        if not self.path.is_dir():
            raise self._unusable()
        try:
            manifest = json.loads((self.path / _MANIFEST).read_bytes())
        except FileNotFoundError as error:
            raise self._unusable(_MANIFEST, "it is missing") from error
        except (ValueError, RecursionError, OSError) as error:
            raise self._unusable(_MANIFEST, f"it is not a manifest ({error})") from error
        digests = manifest.get("sha256") if isinstance(manifest, dict) else None
        if not isinstance(digests, dict) or not digests:
            raise self._unusable(_MANIFEST, "it is not a manifest (it has no sha256 for each file)")
        if manifest.get("format") != self.format:
            why = f"its format is {manifest.get('format')}, this version reads {self.format}"
            raise self._unusable(_MANIFEST, why)
        for name, wanted in digests.items():
            if not (self.path / name).is_file():
                raise self._unusable(name, "it is missing")
            found = sha256(self.path / name)
            if found != wanted:
                raise self._unusable(name, f"its sha256 is {found}, {_MANIFEST} has {wanted}")
        if settings is not None and manifest.get("settings") != settings:
            why = f"it was made with other settings ({manifest.get('settings')}) than these ({settings})"
            raise self._unusable(_MANIFEST, why)
        return dict(manifest)

    def _unusable(self, name: str = "", why: str = "") -> PreparedFolderError:
        """Return the error of a file that cannot be used, or without a name that of a missing folder."""
        where = f"{self.key}={self.path}" if self.key else str(self.path)
        if not name:
            to_type = f"; type: {self.command}" if self.command else ""
            return PreparedFolderError(f"{where}: no such folder{to_type}")
        how = f"type: {self.command} --force" if self.command else "add --force"
        seen = f"{where}: {self.path / name} cannot be used: {why}. It is left in place"
        return PreparedFolderError(f"{seen}; to move the folder aside and make it again, {how}")


SYSTEM_PROMPT = """Respond in the following format:
<reasoning>
...
</reasoning>
<answer>
...
</answer>"""
"""Asks for the tags that `rewards.rules` looks for."""


def verl_row(
    data_source: str,
    question: str,
    ground_truth: str,
    *,
    system: str,
    ability: str,
    extra_info: Mapping[str, Any],
) -> dict[str, Any]:
    """Return one row; an empty ``system`` leaves the system prompt out.

    ``extra_info`` has values of the same types in every row, for the columns of a parquet file.
    """
    instruction = [{"role": "system", "content": system}] if system else []
    return {
        "data_source": data_source,
        "prompt": [*instruction, {"role": "user", "content": question}],
        "ability": ability,
        "reward_model": {"style": "rule", "ground_truth": ground_truth},
        "extra_info": dict(extra_info),
    }


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the rows, in order, as one parquet file; the same rows give the same bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist([*rows]), path)


def read_parquet(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a parquet file as dictionaries."""
    import pyarrow.parquet as pq

    return pq.read_table(path).to_pylist()  # type: ignore[no-any-return]
