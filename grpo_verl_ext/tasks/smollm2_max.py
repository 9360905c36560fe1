"""The larger of two numbers as text, ``max(47,35)=``, and SmolLM2 warm-started on it.

SmolLM2 reads a chat as 40 tokens before the question, and rarely answers one with the number alone. Here the
prompt has 8 tokens, and a few steps of supervised learning have taught the form of the answer: the number,
then the end of the turn. So a training step takes seconds on a processor.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_verl_ext.tasks.folders import (
    TEST,
    TRAIN,
    FoundManifest,
    PreparedFolder,
    PreparedFolderError,
    PreparedOutcome,
    verl_row,
    write_rows,
)
from grpo_verl_ext.utils.files import cache_root

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_NAME = "smollm2_max"
_MODEL = "model"
MAX_PROMPT_TOKENS, MAX_RESPONSE_TOKENS = 8, 6
_MEASURED, MEASURED_EVERY = 64, 4
"""Training problems on which the warm start is measured, and after how many steps."""

_Numbers = tuple[int, int]

_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
"""Chat template under which a chat of one message is that message's text."""

_CHANGED = """
Changed again: {steps} steps of supervised learning on texts such as max(47,35)= with their answers, and a
chat template that leaves a message as it is.
"""


@dataclass(frozen=True)
class MaximaSettings:
    """All that the folder depends on, besides the converted model and torch.

    Attributes:
        smallest, largest: range of the numbers.
        test: number of test prompts.
        start: the warm start ends when the right answer has this probability, the mean over
            `_MEASURED` training problems: a middling one, so that groups of responses are mixed.
        steps: largest number of steps of the warm start.
        batch_size, learning_rate: those of the warm start.
        workers: threads that share each batch; a setting because the weights depend on it.
    """

    seed: int
    smallest: int = 10
    largest: int = 99
    test: int = 512
    start: float = 0.3
    steps: int = 200
    batch_size: int = 16
    learning_rate: float = 1e-4
    workers: int = 2


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
    on_wait: Callable[[], None] = lambda: None,
    on_step: Callable[[int, int], None] = lambda *_: None,
) -> PreparedOutcome[FoundManifest]:
    """Make ``folder`` with training and test data and the warm-started model, or do nothing if it is there.

    Args:
        source: folder of the converted model (`smollm2.prepare_smollm2`).
        on_step: called with the steps done and the steps in all, after each step of the warm start.

    Raises:
        PreparedFolderError: ``source`` is missing or changed, the warm start did not get as far as it should
            in ``steps``; or see `PreparedFolder.make`.

    Returns:
        Its ``found`` has the numbers of problems, and ``steps`` and ``probability`` of the warm start.
    """
    try:
        origin = PreparedFolder(source, FoundManifest).check().settings
    except PreparedFolderError as error:
        raise PreparedFolderError(f"{error}. Type: grpo-verl-ext prepare smollm2") from error

    def build(unfinished: Path) -> dict[str, Any]:
        train, test = draw_numbers(settings)
        for name, split, problems in ((TRAIN, "train", train), (TEST, "test", test)):
            write_rows(unfinished / name, [_row(each, n, split) for n, each in enumerate(problems)])
        started = _write_model(unfinished / _MODEL, source, train, settings, on_step)
        return {"found": {"train": len(train), "test": len(test), **started}}

    content = {**asdict(settings), "model": origin}
    return PreparedFolder(folder, FoundManifest).make(content, build, force=force, on_wait=on_wait)


def _row(numbers: _Numbers, index: int, split: str) -> dict[str, Any]:
    return verl_row(
        _NAME,
        question(numbers),
        str(max(numbers)),
        system="",
        ability="math",
        extra_info={"index": index, "split": split},
    )


def _write_model(
    folder: Path,
    source: Path,
    problems: list[_Numbers],
    settings: MaximaSettings,
    on_step: Callable[[int, int], None],
) -> dict[str, Any]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(source)
    tokenizer.chat_template = _TEMPLATE
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    started = _warm_start(model, tokenizer, problems, settings, on_step)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for name in ("LICENSE", "SOURCE.md"):
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)
    with (folder / "SOURCE.md").open("a", encoding="utf-8") as note:
        note.write(_CHANGED.format(steps=started["steps"]))
    return started


def _warm_start(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    problems: list[_Numbers],
    settings: MaximaSettings,
    on_step: Callable[[int, int], None],
) -> dict[str, Any]:
    """Train ``model`` in place until it answers right as often as it should; return ``found``'s entries."""
    from grpo_verl_ext.tasks.causal_lm import Part, encode, probability_of_responses, train_model

    rng = random.Random(f"warm start/{settings.seed}")
    measured = encode(tokenizer, [*map(_example, problems[:_MEASURED])], MAX_RESPONSE_TOKENS)
    found: dict[str, Any] = {}

    def parts_of_a_batch() -> list[Part]:
        chosen = [*map(_example, rng.sample(problems, settings.batch_size))]
        parts = (chosen[part :: settings.workers] for part in range(settings.workers))
        return [encode(tokenizer, part, MAX_RESPONSE_TOKENS) for part in parts]

    def is_far_enough(step: int) -> bool:
        found.update(steps=step, probability=probability_of_responses(model, measured))
        return bool(found["probability"] >= settings.start)

    def batches() -> Iterator[list[Part]]:
        for step in range(settings.steps):
            if step % MEASURED_EVERY == 0 and is_far_enough(step):
                return
            yield parts_of_a_batch()
        is_far_enough(settings.steps)

    train_model(
        model,
        batches(),
        steps=settings.steps,
        learning_rate=settings.learning_rate,
        on_step=lambda done: on_step(done, settings.steps),
    )
    if found["probability"] < settings.start:
        raise PreparedFolderError(
            f"after {found['steps']} steps of the warm start the right answer has a probability of "
            f"{found['probability']:.3f}; valid is at least {settings.start}. Is this another model than "
            "SmolLM2-135M-Instruct? Type: grpo-verl-ext prepare smollm2 --force"
        )
    return found


def _example(numbers: _Numbers) -> tuple[str, str]:
    return question(numbers), str(max(numbers))
