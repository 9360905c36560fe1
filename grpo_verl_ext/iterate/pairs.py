"""Pairs of a better and a worse response: made, held out, replayed; each choice follows a seed."""

from __future__ import annotations

import hashlib
import json
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

from grpo_verl_ext.iterate.rollouts import Sample
from grpo_verl_ext.iterate.settings import IterateError
from grpo_verl_ext.utils.files import write_whole
from grpo_verl_ext.utils.typed_json import SPOILED, made


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
        except SPOILED as error:
            raise IterateError(
                f"{file}, line {number}, is no pair ({error}). It was left in place"
            ) from error
    return pairs
