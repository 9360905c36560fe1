"""GSM8K (Cobbe et al., arXiv 2110.14168) as rows for verl whose system prompt asks for the tags.

python examples/tasks/gsm8k_tags.py --source FOLDER
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from grpo_verl_ext.tasks.folders import (
    SYSTEM_PROMPT,
    PreparedFolder,
    PreparedFolderError,
    PreparedOutcome,
    read_parquet,
    verl_row,
    write_rows,
)
from grpo_verl_ext.utils.console import one_message
from grpo_verl_ext.utils.files import cache_root, sha256

_NAME = "gsm8k_tags"


def prepare_gsm8k_tags(source: Path, folder: Path | None, *, force: bool) -> PreparedOutcome:
    """Make ``folder`` with both splits of ``source``, or do nothing if it is there.

    None: the folder of the preset ``+task=gsm8k_tags``. The source has ``train`` and ``test``, each as
    ``.jsonl`` with GSM8K's ``question`` and ``answer``, or as ``.parquet`` with those columns or as verl's
    preprocessing writes it.
    """
    files = {}
    for split in ("train", "test"):
        there = [file for end in ("parquet", "jsonl") if (file := source / f"{split}.{end}").is_file()]
        if not there:
            raise PreparedFolderError(
                f"--source is {source}, which has no {split}.parquet or {split}.jsonl; valid is a folder "
                "with GSM8K's own files, or with those of examples/train/prepare_data.sh"
            )
        files[split] = there[0]
    settings = {"system": SYSTEM_PROMPT, "sources": {split: sha256(file) for split, file in files.items()}}

    return PreparedFolder(folder or cache_root() / _NAME).make(
        settings,
        lambda unfinished: {
            "found": {split: _write(file, split, unfinished) for split, file in files.items()}
        },
        force=force,
    )


def _write(file: Path, split: str, folder: Path) -> int:
    """Write the problems as verl reads them; of an answer that ends with ``#### 1,234``, 1234 is true."""
    try:
        if file.suffix == ".jsonl":
            lines = file.read_text(encoding="utf-8").splitlines()
            originals = [json.loads(line) for line in lines if line.strip()]
        else:  # verl keeps the original's columns in extra_info
            originals = [each.get("extra_info", each) for each in read_parquet(file)]
        rows = []
        for index, each in enumerate(originals):
            question, answer = each["question"], each["answer"]
            _, marked, final = answer.rpartition("####")
            if not marked:
                raise ValueError(f"an answer has no '####': {answer!r:.80}")
            of_row = {"index": index, "split": split, "question": question, "answer": answer}
            truth, how = final.strip().replace(",", ""), {"system": SYSTEM_PROMPT, "ability": "math"}
            rows.append(verl_row(_NAME, question, truth, **how, extra_info=of_row))
    except (ValueError, KeyError, OSError) as error:
        raise PreparedFolderError(f"{file} is not GSM8K: {type(error).__name__}: {error}") from error
    write_rows(folder / f"{split}.parquet", rows)
    return len(rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", type=Path, required=True, help="read train and test, .jsonl or .parquet")
    parser.add_argument("--folder", type=Path, help="write into this folder instead of the cache folder")
    parser.add_argument("--force", action="store_true", help="make it again, and move the old one aside")
    given = parser.parse_args()
    with one_message("gsm8k_tags.py", PreparedFolderError):
        outcome = prepare_gsm8k_tags(given.source, given.folder, force=given.force)
    print(outcome.words("{train} training and {test} test prompts".format(**outcome.manifest["found"])))


if __name__ == "__main__":
    main()
