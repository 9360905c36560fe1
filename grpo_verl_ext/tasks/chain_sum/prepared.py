"""The folder of a prepared task: its settings, location, manifest, and the check of its files against it.

Imports neither torch nor transformers, so that the check before a run costs milliseconds.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from grpo_verl_ext.utils.files import cache_root, sha256
from grpo_verl_ext.utils.typed_json import PARSE_ERRORS, made

DATA_SOURCE = "chain_sum"
"""verl's ``data_source`` of every row, which is also part of the names of its validation metrics."""

MAX_PROMPT_TOKENS = 24
"""Longest prompt in tokens, chat template included: 19 with five terms."""

MAX_RESPONSE_TOKENS = 44
"""Budget of a response in tokens: the longest right one has 38 (five terms, end of turn), plus six."""


@dataclass(frozen=True)
class TaskSettings:
    """Sizes of the data and the model, and the schedule of the warm start.

    Every problem has ``min_terms`` to ``max_terms`` terms, each length equally often.

    Attributes:
        steps: optimizer steps of the warm start.
        slip_steps: number of the last steps, which are on responses with wrong additions.
        slip_share: probability that an addition in such a response is wrong on purpose.
        workers: threads that share each batch; a setting because the weights depend on it.
    """

    min_terms: int = 3
    max_terms: int = 5
    train_problems: int = 2048
    test_problems: int = 512

    width: int = 128
    layers: int = 3
    heads: int = 4
    feed_forward: int = 256

    steps: int = 480
    slip_steps: int = 100
    slip_share: float = 0.32
    batch_size: int = 24
    learning_rate: float = 2.2e-3
    workers: int = 2


FORMAT = 1
"""Version of the layout of folder and manifest; a folder with another version has to be made again."""

MANIFEST, TRAIN, TEST, MODEL = "manifest.json", "train.parquet", "test.parquet", "model"
WEIGHTS = f"{MODEL}/model.safetensors"


class PreparedTaskError(ValueError):
    """A prepared folder is missing, corrupt or made with other settings; the message has the line to type."""


@dataclass(frozen=True)
class TaskManifest:
    """The content of ``manifest.json``.

    Attributes:
        versions: versions of Python, torch, transformers and this package; recorded, not compared.
        sha256: path inside the folder → hexadecimal digest, for each file but the manifest.
        sampled_accuracy: share of right answers on ``measured_prompts`` test prompts: one response each,
            temperature 1.
        seconds: wall-clock time of the whole preparation.
    """

    format: int
    seed: int
    settings: dict[str, Any]
    versions: dict[str, str]
    sha256: dict[str, str]
    sampled_accuracy: float
    measured_prompts: int
    seconds: float

    def write(self, folder: Path) -> None:
        """Write ``manifest.json``, the last file: it makes the folder complete."""
        (folder / MANIFEST).write_text(json.dumps(asdict(self), indent=2) + "\n")


def folder_of(seed: int, root: Path | None = None) -> Path:
    """Return the folder of a seed's task, ``<cache root>/chain_sum/seed-<N>``."""
    return (cache_root() if root is None else root) / DATA_SOURCE / f"seed-{seed}"


def check(folder: Path | str) -> None:
    """Refuse a folder that is not as ``grpo-verl-ext prepare chain_sum`` made it.

    Raises:
        PreparedTaskError: the folder is missing, or a file in it is missing or changed; nothing is touched.
    """
    read_checked(Path(folder))


def read_checked(folder: Path) -> TaskManifest:
    """Compare every file of a folder with its manifest and return the manifest; raises as `check` does."""
    if not folder.is_dir():
        raise PreparedTaskError(f"task.folder={folder}: no such folder; type: {command(folder)}")
    manifest = _read_manifest(folder)
    for name, wanted in manifest.sha256.items():
        if not (folder / name).is_file():
            raise _corrupt(folder, name, "it is missing")
        found = sha256(folder / name)
        if found != wanted:
            raise _corrupt(folder, name, f"its sha256 is {found}, {MANIFEST} has {wanted}")
    return manifest


def command(folder: Path, *, force: bool = False) -> str:
    """Return the command line that makes ``folder``, or with ``force`` makes it again."""
    seed = re.fullmatch(r"seed-([0-9]+)", folder.name)
    return f"grpo-verl-ext prepare chain_sum --seed {seed[1] if seed else 'N'}" + " --force" * force


def _read_manifest(folder: Path) -> TaskManifest:
    path = folder / MANIFEST
    if not path.is_file():
        raise _corrupt(folder, MANIFEST, "it is missing")
    try:
        manifest = made(TaskManifest, json.loads(path.read_bytes()))
    except PARSE_ERRORS as error:
        raise _corrupt(folder, MANIFEST, f"it is not a manifest ({error})") from error
    if not isinstance(manifest.sha256, dict) or not {TRAIN, TEST, WEIGHTS} <= manifest.sha256.keys():
        raise _corrupt(folder, MANIFEST, f"it has no sha256 for each of {TRAIN}, {TEST} and {WEIGHTS}")
    if manifest.format != FORMAT:
        raise _corrupt(folder, MANIFEST, f"its format is {manifest.format}, this version reads {FORMAT}")
    return manifest


def _corrupt(folder: Path, name: str, why: str) -> PreparedTaskError:
    return PreparedTaskError(
        f"task.folder={folder}: {folder / name} cannot be used: {why}. It is left in place; to move the "
        f"folder aside and make it again, type: {command(folder, force=True)}"
    )
