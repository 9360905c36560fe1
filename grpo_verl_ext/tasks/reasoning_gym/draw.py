"""Draw the entries of a task and write them as rows for verl, in a process of its own.

Some tasks depend on the order of sets and on Python's global random numbers. `prepare` starts this module
with ``PYTHONHASHSEED=0``, and it seeds the random numbers, so that every run draws the same.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from grpo_verl_ext.rewards.reasoning_gym import BEST, exact_text, from_exact_text, make_dataset
from grpo_verl_ext.tasks.folders import TEST, TRAIN, verl_row, write_rows

REPEATED, NOT_BEST = (
    "questions that came again",
    "entries whose own answer the verifier does not give its best",
)


class DrawError(ValueError):
    """The task cannot give the rows that were asked for."""


def write_task(folder: Path, settings: Mapping[str, Any]) -> dict[str, int]:
    """Write `TRAIN` and `TEST`, no question twice in both together, and count the entries left out.

    The test set does not depend on the size of the training set.
    """
    wanted = settings["train"] + settings["test"]
    left_out: Counter[str] = Counter({REPEATED: 0, NOT_BEST: 0})
    entries = list(islice(_usable(settings, left_out), wanted))
    if len(entries) < wanted:
        raise DrawError(
            f"{settings['task']} gave {len(entries)} different questions in {_draws(settings)} draws; "
            f"--train and --test ask for {wanted}. Ask for fewer, or widen the task with --config"
        )
    test, train = entries[: settings["test"]], entries[settings["test"] :]
    for name, split, chosen in ((TRAIN, "train", train), (TEST, "test", test)):
        write_rows(folder / name, [_row(entry, n, split, settings) for n, entry in enumerate(chosen)])
    return dict(left_out)


def _usable(settings: Mapping[str, Any], left_out: Counter[str]) -> Iterator[dict[str, Any]]:
    """Yield entries with new questions whose right answer gets the verifier's best."""
    task = settings["task"]
    # reasoning-gym seeds entry i with seed + i, so neighbouring seeds would share nearly all entries; half of
    # numpy's range leaves room for i
    seed = int.from_bytes(hashlib.sha256(f"{task}/{settings['seed']}".encode()).digest()[:4], "big") // 2
    random.seed(seed)
    np.random.seed(seed)
    draws = _draws(settings)
    dataset = make_dataset(task, settings["config"], seed=seed, size=draws)
    asked: set[str] = set()
    for index in range(draws):
        entry = dataset[index]
        if entry["question"] in asked:
            left_out[REPEATED] += 1
        elif not _own_answer_is_best(dataset, entry, task):
            left_out[NOT_BEST] += 1
        else:
            asked.add(entry["question"])
            yield entry


def _draws(settings: Mapping[str, Any]) -> int:
    return 1000 + 10 * int(settings["train"] + settings["test"])


def _own_answer_is_best(dataset: Any, entry: Mapping[str, Any], task: str) -> bool:
    """Whether the entry's answer, if it has one, gets the best score as a model would give it.

    That is, stripped, as the reward reads it from a response, and with the entry read back from JSON.
    """
    if entry["answer"] is None:
        return True
    restored = from_exact_text(exact_text(entry))
    try:
        return BEST <= float(dataset.score_answer(entry["answer"].strip(), restored)) < math.inf
    except Exception as error:
        raise DrawError(
            f"reasoning-gym's verifier of {task} raised {type(error).__name__}: {error}, for the task's own "
            f"answer {entry['answer']!r:.200}"
        ) from error


def _row(entry: Mapping[str, Any], index: int, split: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    return verl_row(
        f"reasoning_gym/{settings['task']}",
        entry["question"],
        entry["answer"] or "",
        system=settings["system"],
        ability="reasoning",
        extra_info={
            "index": index,
            "split": split,
            "task": settings["task"],
            "config": exact_text(settings["config"]),
            "entry": exact_text(entry),
        },
    )


def main() -> None:
    """Read the settings from standard input, write the files to the folder given, print what was left out."""
    try:
        print(json.dumps(write_task(Path(sys.argv[1]), json.load(sys.stdin))))
    except DrawError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
