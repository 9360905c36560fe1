"""The folder of a prepared task: its settings, location, manifest, and the check of its files against it.

Imports neither torch nor transformers, so that the check before a run costs milliseconds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from grpo_verl_ext.utils.files import cache_root, sha256
from grpo_verl_ext.utils.typed_json import PARSE_ERRORS, made

MAX_PROMPT_TOKENS = 24
"""Longest prompt in tokens, chat template included: 19 with five terms."""

MAX_RESPONSE_TOKENS = 44
"""Budget of a response of chain_sum: the longest right one has 38 (five terms, end of turn), plus six."""

SHORT_TERMS = 3
"""Largest number of terms of a short problem."""


@dataclass(frozen=True)
class TaskSettings:
    """Sizes of the data and the model, and the schedule of the warm start.

    Every problem has ``min_terms`` to ``max_terms`` terms, each length equally often as far as its problems
    reach; the others share the rest.

    Attributes:
        name: verl's ``data_source`` of every row, which is also part of the names of its validation metrics.
        split_by_set: problems with the same terms in another order are on the same side of the split. Without
            it the split is by the text: most test problems then are permutations of training problems.
        rewrite_share: probability that the steps are written once more, again and again, in the responses of
            the warm start, so that lengths vary between responses to one prompt. Below a half: the most
            likely response then has no repetition.
        max_response_tokens: budget of a response.
        steps: optimizer steps of the warm start.
        slip_steps: number of the last steps, which are on responses with wrong additions.
        slip_share: probability that an addition in such a response is wrong on purpose.
        short_slip_share: the same for problems of at most `SHORT_TERMS` terms.
        standardise: divide the logits afterwards so that it is a standard start (`standard_start`).
        workers: threads that share each batch; a setting because the weights depend on it.
    """

    name: str = "chain_sum"
    min_terms: int = 3
    max_terms: int = 5
    train_problems: int = 2048
    test_problems: int = 512
    split_by_set: bool = False
    rewrite_share: float = 0.0
    max_response_tokens: int = MAX_RESPONSE_TOKENS

    width: int = 128
    layers: int = 3
    heads: int = 4
    feed_forward: int = 256

    steps: int = 480
    slip_steps: int = 100
    slip_share: float = 0.32
    short_slip_share: float = 0.32
    batch_size: int = 24
    learning_rate: float = 2.2e-3
    standardise: bool = False
    workers: int = 2


TASKS: Mapping[str, TaskSettings] = {
    settings.name: settings
    for settings in (
        TaskSettings(),
        TaskSettings(
            name="chain_sum_mixed",
            min_terms=2,
            max_terms=6,
            split_by_set=True,
            max_response_tokens=52,
            steps=900,
            slip_steps=120,
            slip_share=0.2,
            short_slip_share=0.15,
            standardise=True,
        ),
        TaskSettings(
            name="chain_sum_verbose",
            min_terms=2,
            max_terms=6,
            split_by_set=True,
            rewrite_share=0.4,
            max_response_tokens=90,
            steps=900,
            slip_steps=120,
            slip_share=0.2,
            short_slip_share=0.15,
            standardise=True,
        ),
    )
}
"""The embedded tasks by name: one problem, three mixtures of lengths."""

GREEDY_AT_LEAST, SAMPLED, SAMPLED_WITHIN = 0.95, 0.25, 0.03
"""A standard start: share of right answers by the most likely tokens, and sampled at temperature 1."""

SAMPLES = 4
"""Responses to each prompt of which the sampled accuracy is the share; its standard error is 0.01."""

FORMAT = 2
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
        sampled_accuracy: share of right answers on ``measured_prompts`` test prompts, `SAMPLES` responses
            each, at temperature 1.
        greedy_accuracy: the same for the most likely tokens.
        temperature: what the logits were divided by to make the start a standard one; 1.0: nothing.
        seconds: wall-clock time of the whole preparation.
    """

    format: int
    seed: int
    settings: dict[str, Any]
    versions: dict[str, str]
    sha256: dict[str, str]
    sampled_accuracy: float
    greedy_accuracy: float
    measured_prompts: int
    temperature: float
    seconds: float

    @property
    def is_standard(self) -> bool:
        """Whether the starting model knows the answers and samples about a quarter of them."""
        near = round(abs(self.sampled_accuracy - SAMPLED), 9) <= SAMPLED_WITHIN
        return near and self.greedy_accuracy >= GREEDY_AT_LEAST

    def write(self, folder: Path) -> None:
        """Write ``manifest.json``, the last file: it makes the folder complete."""
        (folder / MANIFEST).write_text(json.dumps(asdict(self), indent=2) + "\n")


def folder_of(seed: int, root: Path | None = None, task: str = "chain_sum") -> Path:
    """Return the folder of a seed's task, ``<cache root>/<task>/seed-<N>``."""
    return (cache_root() if root is None else root) / task / f"seed-{seed}"


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
    task = folder.parent.name if folder.parent.name in TASKS else "chain_sum"
    return f"grpo-verl-ext prepare {task} --seed {seed[1] if seed else 'N'}" + " --force" * force


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
