"""The larger of two numbers as text, ``max(47,35)=``, and SmolLM2 warm-started on it.

    python examples/tasks/smollm2_model.py
    python examples/tasks/smollm2_max.py --seed 1

SmolLM2 reads a chat as 40 tokens before the question, and rarely answers one with the number alone. Here the
prompt has 8 tokens, and a few steps of supervised learning have taught the form of the answer: the number,
then the end of the turn. So a training step takes seconds on a processor.
"""

from __future__ import annotations

import argparse
import random
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from smollm2_model import MAKE, WarmStart, smollm2_folder, write_warm_started

from grpo_verl_ext.tasks.folders import (
    TEST,
    TRAIN,
    PreparedFolder,
    PreparedFolderError,
    PreparedOutcome,
    verl_row,
    write_rows,
)
from grpo_verl_ext.utils.console import one_message
from grpo_verl_ext.utils.files import cache_root

_NAME = "smollm2_max"
_MODEL = "model"
MAX_PROMPT_TOKENS, MAX_RESPONSE_TOKENS = 8, 6
_Numbers = tuple[int, int]


@dataclass(frozen=True)
class MaximaSettings(WarmStart):
    """All that the folder depends on, besides the converted model and torch.

    Attributes:
        smallest, largest: range of the numbers.
        test: number of test prompts.
    """

    smallest: int = 10
    largest: int = 99
    test: int = 512


def smollm2_max_folder(seed: int) -> Path:
    """Return the folder of the preset ``+task=smollm2_max``."""
    return cache_root() / _NAME / f"seed-{seed}"


def question(numbers: _Numbers) -> str:
    """Return the text of a prompt."""
    return f"max({numbers[0]},{numbers[1]})="


def draw_numbers(settings: MaximaSettings) -> tuple[list[_Numbers], list[_Numbers]]:
    """Return training and test problems in a seeded order.

    A pair of numbers is on one side: the training problems have both orders of theirs, the test problems one.
    """
    rng = random.Random(f"{_NAME}/{settings.seed}")
    pairs = [*combinations(range(settings.smallest, settings.largest + 1), 2)]
    rng.shuffle(pairs)
    test, rest = pairs[: settings.test], pairs[settings.test :]
    train = [order for a, b in rest for order in ((a, b), (b, a))]
    rng.shuffle(train)
    return train, [pair if rng.random() < 0.5 else pair[::-1] for pair in test]


def prepare_smollm2_max(
    settings: MaximaSettings,
    source: Path,
    folder: Path,
    *,
    force: bool,
) -> PreparedOutcome:
    """Make ``folder`` with training and test data and the warm-started model, or do nothing if it is there.

    Args:
        source: folder of the converted model (`smollm2_model.prepare_smollm2`).

    Raises:
        PreparedFolderError: ``source`` is missing or changed, the warm start did not get as far as it should
            in ``steps``; or see `PreparedFolder.make`.

    Returns:
        Its ``found`` has the numbers of problems, and ``steps`` and ``probability`` of the warm start.
    """
    try:
        origin = PreparedFolder(source).check()["settings"]
    except PreparedFolderError as error:
        raise PreparedFolderError(f"{error}. Type: {MAKE}") from error

    def build(unfinished: Path) -> dict[str, Any]:
        train, test = draw_numbers(settings)
        for name, split, problems in ((TRAIN, "train", train), (TEST, "test", test)):
            write_rows(unfinished / name, [_row(each, n, split) for n, each in enumerate(problems)])
        examples = [(question(each), str(max(each))) for each in train]
        started = write_warm_started(
            unfinished / _MODEL,
            source,
            examples,
            settings,
            max_response_tokens=MAX_RESPONSE_TOKENS,
        )
        return {"found": {"train": len(train), "test": len(test), **started}}

    content = {**asdict(settings), "model": origin}
    return PreparedFolder(folder).make(content, build, force=force)


def _row(numbers: _Numbers, index: int, split: str) -> dict[str, Any]:
    return verl_row(
        _NAME,
        question(numbers),
        str(max(numbers)),
        system="",
        ability="math",
        extra_info={"index": index, "split": split},
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1, help="of the numbers and of the warm start (1)")
    parser.add_argument("--model", type=Path, default=smollm2_folder(), help="begin with this folder's model")
    parser.add_argument("--folder", type=Path, help="write into this folder instead of the cache folder")
    parser.add_argument("--force", action="store_true", help="make it again, and move the old one aside")
    given = parser.parse_args()
    with one_message("smollm2_max.py", PreparedFolderError):
        outcome = prepare_smollm2_max(
            MaximaSettings(given.seed),
            given.model,
            given.folder or smollm2_max_folder(given.seed),
            force=given.force,
        )
    found = outcome.manifest["found"]
    print(
        outcome.words(
            "{train} training and {test} test prompts, no pair of numbers in both".format(**found),
            "the right answer has the probability {probability:.3f} after {steps} steps".format(**found),
        )
    )


if __name__ == "__main__":
    main()
