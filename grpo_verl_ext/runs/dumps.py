"""Responses as verl dumps them: ``trainer.rollout_data_dir`` and ``trainer.validation_data_dir``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


class CorruptDumpError(ValueError):
    """A line of a dump is no response of verl's; the message names file and line."""


@dataclass(frozen=True)
class Response:
    """One line. Texts are without special tokens, as verl writes them."""

    prompt_id: str
    """The same for all responses to one prompt of a step."""
    prompt: str
    output: str
    truth: object
    """As the dataset has it; None if it has none."""
    score: float


def dump_file(folder: Path, step: int) -> Path:
    """verl's file of a step."""
    return folder / f"{step}.jsonl"


def read_dump(file: Path) -> list[Response]:
    """In verl's order.

    Raises:
        CorruptDumpError: a line is no record of verl's. The file is left in place.
    """
    responses = []
    # Not splitlines(): verl leaves the Unicode line separators of a response as they are.
    for number, line in enumerate(file.read_text(encoding="utf-8").rstrip("\n").split("\n"), start=1):
        try:
            responses.append(_response(json.loads(line)))
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptDumpError(
                f"{file}, line {number}, is no response of verl's dump ({error!r}). It was left in place; "
                f"move it away to go on without it"
            ) from error
    return responses


def _response(record: dict[str, object]) -> Response:
    # verl's key of a response: <prompt>_<rollout>_<output>.
    prompt_id = str(record["uid"]).rsplit("_", 2)[0]
    score = record["score"]
    if not isinstance(score, int | float):
        raise TypeError(f"score is {score!r}")
    prompt, output = str(record["input"]), str(record["output"])
    # Half of a surrogate pair is no text: no tokenizer takes it, no file.
    (prompt + output).encode("utf-8")
    return Response(prompt_id, prompt, output, record.get("gts"), float(score))
