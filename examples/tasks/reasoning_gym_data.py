"""Write any task of reasoning-gym as training and test data; the reward is its own verifier.

    pip install reasoning-gym
    python examples/tasks/reasoning_gym_data.py --task countdown --train 4096 --test 512

Some tasks depend on the order of sets and on Python's global random numbers. So `prepare_reasoning_gym`
starts this module as a process of its own with ``PYTHONHASHSEED=0``, which seeds the random numbers: every
run draws the same. ``reasoning_gym_survey.py`` prints what the verifiers of all tasks give another row's
answer.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import math
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from difflib import get_close_matches
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from reasoning_gym_check import check_verifier, lines_of, refusal_of
from reasoning_gym_reward import BEST, exact_text, from_exact_text, library, make_dataset

from grpo_verl_ext.tasks.folders import (
    SYSTEM_PROMPT,
    TEST,
    TRAIN,
    PreparedFolder,
    PreparedFolderError,
    PreparedOutcome,
    verl_row,
    write_rows,
)
from grpo_verl_ext.utils.console import ending, one_message
from grpo_verl_ext.utils.files import cache_root


@dataclass(frozen=True)
class GymSettings:
    """All that a task's rows depend on, besides the version of reasoning-gym.

    Attributes:
        task: a name in reasoning-gym's registry.
        config: options of that task's configuration.
        train, test: numbers of prompts.
        system: system prompt; empty for none.
    """

    task: str
    config: Mapping[str, Any]
    train: int
    test: int
    seed: int
    system: str


def reasoning_gym_folder(task: str, seed: int) -> Path:
    """Return the folder of the preset ``+task=reasoning_gym``."""
    return cache_root() / "reasoning_gym" / task / f"seed-{seed}"


def prepare_reasoning_gym(
    settings: GymSettings, folder: Path, *, force: bool, accept_other_answers: bool = False
) -> PreparedOutcome:
    """Make ``folder`` with training and test data, or do nothing if it is there.

    Raises:
        ModuleNotFoundError: reasoning-gym is missing.
        PreparedFolderError: an unknown task or option, a value that the task refuses, a verifier that raises,
            or that gives other rows' answers the full reward without ``accept_other_answers``, fewer
            different questions than asked for; or see `PreparedFolder.make`.
    """
    _check(settings)
    content = {**asdict(settings), "reasoning_gym": version("reasoning-gym")}
    accepted = [_ACCEPT] if accept_other_answers else []
    place = PreparedFolder(folder)
    return place.make(content, lambda unfinished: _draw(unfinished, settings, accepted), force=force)


def _check(settings: GymSettings) -> None:
    """Refuse what reasoning-gym does not know, with what it does."""
    known = library().factory.DATASETS
    if settings.task not in known:
        raise _unknown("--task", settings.task, known)
    options = [field.name for field in fields(known[settings.task][1]) if field.name not in ("seed", "size")]
    for name in settings.config:
        if name not in options:
            raise _unknown(f"an option of {settings.task}, --config", name, options)
    try:
        json.dumps(settings.config)  # the manifest and the rows have it
        make_dataset(settings.task, settings.config, seed=0, size=1)
    except Exception as error:
        raise PreparedFolderError(
            f"{settings.task} refuses --config {dict(settings.config)}: {error or type(error).__name__}. Its "
            f"options are {', '.join(options)}"
        ) from error


def _unknown(what: str, name: str, valid: Mapping[str, Any] | list[str]) -> PreparedFolderError:
    nearest = get_close_matches(name, valid, n=1, cutoff=0.0) or ["none"]
    return PreparedFolderError(
        f"{what} is {name!r}; valid are {', '.join(sorted(valid))}. The nearest is {nearest[0]}"
    )


_ACCEPT = "--accept-other-answers"
_DRAW = "--draw-into"
"""Begins the command line of that process."""


def _draw(folder: Path, settings: GymSettings, accepted: list[str]) -> dict[str, Any]:
    """Run this module in a process whose hashes are the same every time."""
    finished = subprocess.run(
        [sys.executable, __file__, _DRAW, folder, *accepted],
        input=json.dumps(asdict(settings)),
        env=os.environ | {"PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    if finished.returncode:
        last = finished.stderr.strip().rpartition("\n")[2]
        raise PreparedFolderError(
            last or f"the process that draws them ended with {ending(finished.returncode)}"
        )
    return {"found": json.loads(finished.stdout)}


REPEATED, NOT_BEST = (
    "questions that came again",
    "entries whose own answer the verifier does not give its best",
)


class DrawError(ValueError):
    """The task cannot give the rows that were asked for."""


def write_task(
    folder: Path, settings: Mapping[str, Any], *, accept_other_answers: bool = False
) -> dict[str, Any]:
    """Write `TRAIN` and `TEST`, no question twice in both together, and return what was found.

    That is ``left_out``, the entries left out by their reason, and ``verifier``, see `check_verifier`. The
    test set does not depend on the size of the training set.
    """
    wanted = settings["train"] + settings["test"]
    left_out: Counter[str] = Counter({REPEATED: 0, NOT_BEST: 0})
    # one dataset: it decides what the verifier takes, too
    dataset = _dataset(settings)
    entries = list(islice(_usable(dataset, settings, left_out), wanted))
    if len(entries) < wanted:
        raise DrawError(
            f"{settings['task']} gave {len(entries)} different questions in {_draws(settings)} draws; "
            f"--train and --test ask for {wanted}. Ask for fewer, or widen the task with --config"
        )
    found = check_verifier(dataset, entries, settings["task"])
    refusal = refusal_of(found)
    if refusal and not accept_other_answers:
        raise DrawError(f"{refusal}. Choose another --task, or add {_ACCEPT} to train on it all the same")
    test, train = entries[: settings["test"]], entries[settings["test"] :]
    for name, split, chosen in ((TRAIN, "train", train), (TEST, "test", test)):
        write_rows(folder / name, [_row(entry, n, split, settings) for n, entry in enumerate(chosen)])
    return {"left_out": dict(left_out), "verifier": found}


def _dataset(settings: Mapping[str, Any]) -> Any:
    """Return the dataset that the rows are drawn from, and seed the random numbers."""
    task = settings["task"]
    # reasoning-gym seeds entry i with seed + i, so neighbouring seeds would share nearly all entries; half of
    # numpy's range leaves room for i
    seed = int.from_bytes(hashlib.sha256(f"{task}/{settings['seed']}".encode()).digest()[:4], "big") // 2
    random.seed(seed)
    np.random.seed(seed)
    return make_dataset(task, settings["config"], seed=seed, size=_draws(settings))


def _usable(dataset: Any, settings: Mapping[str, Any], left_out: Counter[str]) -> Iterator[dict[str, Any]]:
    """Yield entries with new questions whose right answer gets the verifier's best."""
    asked: set[str] = set()
    for index in range(_draws(settings)):
        entry = dataset[index]
        if entry["question"] in asked:
            left_out[REPEATED] += 1
        elif not _own_answer_is_best(dataset, entry, settings["task"]):
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


def options_of(words: list[str]) -> dict[str, Any]:
    """Read ``key=value``, each value as YAML."""
    options = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (equals and name.isidentifier()):
            raise PreparedFolderError(f"--config is {word!r}; valid is key=value, such as max_terms=3")
        try:
            options[name] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise PreparedFolderError(f"--config {name} is {value!r}; valid is a value as in YAML") from error
    return options


def main() -> None:
    if sys.argv[1:2] == [_DRAW]:
        try:
            # bf prints a point for each question, tower_of_hanoi each wrong move
            with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
                accepted = _ACCEPT in sys.argv[3:]
                found = write_task(Path(sys.argv[2]), json.load(sys.stdin), accept_other_answers=accepted)
        except DrawError as error:
            sys.exit(str(error))
        print(json.dumps(found))
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", required=True, help="a task of reasoning-gym, such as countdown")
    parser.add_argument("--config", action="append", default=[], help="an option of the task: max_terms=3")
    parser.add_argument("--train", type=int, default=4096, help="training prompts (4096)")
    parser.add_argument("--test", type=int, default=512, help="test prompts (512)")
    parser.add_argument("--seed", type=int, default=1, help="of the draw (1)")
    parser.add_argument("--system", default=SYSTEM_PROMPT, help="system prompt; '' for none")
    parser.add_argument("--folder", type=Path, help="write into this folder instead of the cache folder")
    parser.add_argument("--force", action="store_true", help="make it again, and move the old one aside")
    parser.add_argument(
        _ACCEPT, action="store_true", help="make it although other rows' answers get the full reward"
    )
    given = parser.parse_args()
    with one_message("reasoning_gym_data.py", PreparedFolderError, ModuleNotFoundError):
        config = options_of(given.config)
        settings = GymSettings(given.task, config, given.train, given.test, given.seed, given.system)
        outcome = prepare_reasoning_gym(
            settings,
            given.folder or reasoning_gym_folder(given.task, given.seed),
            force=given.force,
            accept_other_answers=given.accept_other_answers,
        )
    found = outcome.manifest["found"]
    told = [f"left out: {count} {what}" for what, count in found["left_out"].items() if count]
    told += lines_of(found.get("verifier", {}))  # a folder of an earlier version has none
    prompts = f"{given.train} training and {given.test} test prompts, no question twice"
    print(outcome.words(prompts, *told))


if __name__ == "__main__":
    main()
