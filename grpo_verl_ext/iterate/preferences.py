"""Pairs of a better and a worse response: made, held out, replayed; each choice follows a seed."""

from __future__ import annotations

import hashlib
import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

from grpo_verl_ext.iterate.settings import IterateError
from grpo_verl_ext.runs.dumps import CorruptDumpError, dump_file, read_dump
from grpo_verl_ext.utils.files import write_whole
from grpo_verl_ext.utils.typed_json import PARSE_ERRORS, made


@dataclass(frozen=True)
class Pair:
    """Two responses to one prompt, in TRL's names."""

    prompt: str
    chosen: str
    rejected: str


def make_pairs(samples: Iterable[Sample], *, per_prompt: int, seed: int) -> list[Pair]:
    """Pairs of responses to the same prompt at the same step whose labels differ, without equal texts.

    At most ``per_prompt`` for each prompt and step, drawn uniformly from all that there are.
    """
    rng = random.Random(f"pairs/{seed}")
    groups: dict[tuple[int, str], list[Sample]] = defaultdict(list)
    for sample in samples:
        groups[sample.step, sample.prompt].append(sample)
    pairs: list[Pair] = []
    for group in groups.values():
        every = {
            Pair(better.prompt, better.response, worse.response): None
            for better, worse in product(group, repeat=2)
            if better.label > worse.label
        }
        pairs += rng.sample(list(every), min(per_prompt, len(every)))
    return pairs


def split_by_prompt(pairs: Iterable[Pair], *, held_out: float, seed: int) -> tuple[list[Pair], list[Pair]]:
    """Pairs to train on, and pairs held out.

    A prompt is on one side in every round, so that no replay of an earlier round brings a held-out one back.
    """
    sides: tuple[list[Pair], list[Pair]] = ([], [])
    for pair in pairs:
        digest = hashlib.sha256(f"{seed}/{pair.prompt}".encode()).digest()
        sides[int.from_bytes(digest[:8], "big") < held_out * 2**64].append(pair)
    return sides


def replayed(new: int, history: Sequence[Pair], *, share: float, seed: int) -> list[Pair]:
    """Pairs of all earlier rounds, drawn uniformly without replacement.

    As many as make ``share`` of the mixture with ``new`` pairs, n = new · share / (1 − share), rounded; all
    there are if there are fewer.
    """
    wanted = round(new * share / (1 - share))
    return random.Random(f"replay/{seed}").sample(list(history), min(wanted, len(history)))


def write_pairs(file: Path, pairs: Iterable[Pair]) -> None:
    """One JSON object a line, whole or not at all."""
    write_whole(file, "".join(json.dumps(asdict(pair), ensure_ascii=False) + "\n" for pair in pairs))


def read_pairs(file: Path) -> list[Pair]:
    """What `write_pairs` wrote.

    Raises:
        IterateError: a line is no pair.
    """
    pairs = []
    for number, line in enumerate(file.read_bytes().split(b"\n")[:-1], start=1):
        try:
            pairs.append(made(Pair, json.loads(line)))
        except PARSE_ERRORS as error:
            raise IterateError(
                f"{file}, line {number}, is no pair ({error}). It was left in place"
            ) from error
    return pairs


Rule = Callable[[str, object], object]
"""From a response and its ground truth to a number, or to a dictionary with ``score``, as verl's rules."""


@dataclass(frozen=True)
class Sample:
    """One response. Texts are without special tokens, as verl writes them."""

    prompt: str
    response: str
    label: float
    step: int


def read_rollouts(folder: Path, steps: int, rule: Rule) -> tuple[list[Sample], list[int]]:
    """Responses in the order in which verl wrote them, and the steps whose file is not there.

    A file is missing where a training was killed between its checkpoint and its dump.

    Raises:
        IterateError: a line is no record of verl's, or no step has a file.
    """
    files = {step: dump_file(folder, step) for step in range(1, steps + 1)}
    missing = [step for step, file in files.items() if not file.is_file()]
    if len(missing) == steps:
        raise IterateError(
            f"{folder} has no rollouts of steps 1 … {steps}; was trainer.rollout_data_dir overridden?"
        )
    return [
        sample for step, file in files.items() if step not in missing for sample in _samples(file, step, rule)
    ], missing


def _samples(file: Path, step: int, rule: Rule) -> list[Sample]:
    try:
        responses = read_dump(file)
    except CorruptDumpError as error:
        raise IterateError(str(error)) from error
    return [
        Sample(response.prompt, response.output, label_of(rule(response.output, response.truth)), step)
        for response in responses
    ]


def label_of(result: object) -> float:
    """The number in what a rule returned."""
    value = result["score"] if isinstance(result, dict) else result
    if not isinstance(value, int | float):
        raise IterateError(
            f"reward_model.label returned {result!r}; valid is a number, or {{'score': number}}"
        )
    return float(value)
