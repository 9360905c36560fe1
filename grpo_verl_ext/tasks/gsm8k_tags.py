"""GSM8K (Cobbe et al., arXiv 2110.14168) as rows for verl whose system prompt asks for the tags."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from grpo_verl_ext.tasks.folders import (
    SYSTEM_PROMPT,
    TEST,
    TRAIN,
    FoundManifest,
    PreparedFolder,
    PreparedFolderError,
    PreparedOutcome,
    read_parquet,
    verl_row,
    write_rows,
)
from grpo_verl_ext.utils.files import cache_root, sha256

_NAME = "gsm8k_tags"
_SPLITS = {"train": TRAIN, "test": TEST}


def gsm8k_tags_folder() -> Path:
    """Return the folder of the preset ``+task=gsm8k_tags``."""
    return cache_root() / _NAME


def _gsm8k_row(question: str, answer: str, *, split: str, index: int) -> dict[str, Any]:
    """Return one problem as verl reads it; of an answer that ends with ``#### 1,234``, ``1234`` is true."""
    _, marked, final = answer.rpartition("####")
    if not marked:
        raise ValueError(f"an answer has no '####': {answer!r:.80}")
    return verl_row(
        _NAME,
        question,
        final.strip().replace(",", ""),
        system=SYSTEM_PROMPT,
        ability="math",
        extra_info={"index": index, "split": split, "question": question, "answer": answer},
    )


def prepare_gsm8k_tags(source: Path, folder: Path, *, force: bool) -> PreparedOutcome[FoundManifest]:
    """Make ``folder`` with both splits of ``source``, or do nothing if it is there.

    Args:
        source: a folder with ``train`` and ``test``, each as ``.jsonl`` with GSM8K's ``question`` and
            ``answer``, or as ``.parquet`` with those columns or as verl's preprocessing writes it.

    Raises:
        PreparedFolderError: a file is missing or not GSM8K; or see `PreparedFolder.make`.
    """
    files = {split: _file(source, split) for split in _SPLITS}
    settings = {"system": SYSTEM_PROMPT, "sources": {split: sha256(file) for split, file in files.items()}}

    def build(unfinished: Path) -> dict[str, Any]:
        counts = {}
        for split, file in files.items():
            rows = _rows(file, split)
            write_rows(unfinished / _SPLITS[split], rows)
            counts[split] = len(rows)
        return {"found": counts}

    return PreparedFolder(folder, FoundManifest).make(settings, build, force=force)


def _file(source: Path, split: str) -> Path:
    candidates = [source / f"{split}{ending}" for ending in (".parquet", ".jsonl")]
    found = next((file for file in candidates if file.is_file()), None)
    if found is None:
        raise PreparedFolderError(
            f"--source is {source}, which has no {split}.parquet or {split}.jsonl; valid is a folder with "
            "GSM8K's own files, or with those of examples/train/prepare_data.sh"
        )
    return found


def _rows(file: Path, split: str) -> list[dict[str, Any]]:
    try:
        if file.suffix == ".jsonl":
            lines = file.read_text(encoding="utf-8").splitlines()
            originals = [json.loads(line) for line in lines if line.strip()]
        else:  # verl keeps the original's columns in extra_info
            originals = [each.get("extra_info", each) for each in read_parquet(file)]
        return [
            _gsm8k_row(each["question"], each["answer"], split=split, index=index)
            for index, each in enumerate(originals)
        ]
    except (ValueError, KeyError, OSError) as error:
        raise PreparedFolderError(f"{file} is not GSM8K: {type(error).__name__}: {error}") from error
