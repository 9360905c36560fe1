"""The files of verl's ``trainer.rollout_data_dir``: ``<step>.jsonl``, one response a line."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

FIELDS: dict[str, type | tuple[type, ...]] = {
    "input": str,
    "output": str,
    "score": (int, float),
    "step": int,
    "uid": str,
}
"""What is read of a record, and its types in JSON."""

HOW_TO_DUMP = "Valid is what a training leaves that was given: trainer.rollout_data_dir=<folder>"


class AnatomyError(ValueError):
    """A dump, or what it is to be looked at with, cannot be used; the message has the line to type."""


@dataclass(frozen=True)
class Response:
    """One response and what it was sampled for. Texts are without special tokens, as verl writes them."""

    prompt: str
    text: str
    score: float
    step: int
    group: str
    """The uid of the prompt: all responses of one step that have it are compared with each other."""


def read_steps(dump: Path) -> Iterator[list[Response]]:
    """The responses of each step, one file in memory at a time.

    Args:
        dump: a folder with ``1.jsonl``, ``2.jsonl``, …, or one such file; other names are not verl's.

    Raises:
        AnatomyError: there is nothing there, or a line is no record of verl's; the file is left as it is.
    """
    for file in _files(dump):
        by_step = sorted(_responses(file), key=_step)
        for _, responses in groupby(by_step, key=_step):
            yield list(responses)


def _step(response: Response) -> int:
    return response.step


def _files(dump: Path) -> list[Path]:
    if dump.is_file():
        return [dump]
    if not dump.is_dir():
        raise AnatomyError(f"{dump} is neither a folder nor a file. {HOW_TO_DUMP}")
    files = [file for file in dump.glob("*.jsonl") if file.stem.isdigit()]
    if not files:
        raise AnatomyError(f"{dump} has no 1.jsonl, 2.jsonl, …. {HOW_TO_DUMP}")
    return sorted(files, key=lambda file: int(file.stem))


def _responses(file: Path) -> Iterator[Response]:
    # As bytes: verl leaves Unicode's line separators in a response as they are.
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                yield _response(json.loads(line))
            except (ValueError, KeyError, TypeError) as error:
                raise AnatomyError(
                    f"{file}, line {number}, is no rollout of verl's ({error!r}); valid is an object with "
                    f"{', '.join(FIELDS)}. It was left in place; correct the line, or move "
                    f"the file away to go on without it"
                ) from error


def _response(record: dict[str, Any]) -> Response:
    for key, kind in FIELDS.items():
        if not isinstance(record[key], kind):
            raise TypeError(f"{key} is a {type(record[key]).__name__}")
    score = float(record["score"])
    if not math.isfinite(score):
        raise ValueError(f"score is {score}")
    return Response(record["input"], record["output"], score, record["step"], prompt_uid(record["uid"]))


def prompt_uid(uid: str) -> str:
    """``<prompt uid>_<rollout>_<output>`` → ``<prompt uid>``, and any other uid as it is, as verl does it."""
    parts = uid.rsplit("_", 2)
    return parts[0] if len(parts) == 3 else uid
