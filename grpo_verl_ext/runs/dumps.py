"""Responses as verl dumps them: ``trainer.rollout_data_dir`` and ``trainer.validation_data_dir``."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_verl_ext.utils.typed_json import PARSE_ERRORS, typed

FIELDS = {"input": str, "output": str, "score": float, "step": int, "uid": str}
"""What is read of a line beside ``gts``, and its types in JSON."""


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
    step: int


def dump_file(folder: Path, step: int) -> Path:
    """verl's file of a step."""
    return folder / f"{step}.jsonl"


def read_dump(file: Path) -> list[Response]:
    """In verl's order.

    Raises:
        CorruptDumpError: a line is no record of verl's. The file is left in place.
    """
    responses = []
    # As bytes: verl leaves the Unicode line separators of a response as they are.
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                responses.append(_response(json.loads(line)))
            except PARSE_ERRORS as error:
                raise CorruptDumpError(
                    f"{file}, line {number}, is no response of verl's dump ({error!r}); valid is an object "
                    f"with {', '.join(FIELDS)}. It was left in place; move it away to go on without it"
                ) from error
    return responses


def _response(content: Any) -> Response:
    record = typed(content, FIELDS)
    prompt, output, score = record["input"], record["output"], float(record["score"])
    if not math.isfinite(score):
        raise ValueError(f"score is {score}")
    # Half of a surrogate pair is no text: no tokenizer takes it, no file.
    (prompt + output).encode("utf-8")
    return Response(_prompt_id(record["uid"]), prompt, output, record.get("gts"), score, record["step"])


def _prompt_id(uid: str) -> str:
    """verl's key of a response is ``<prompt>_<rollout>_<output>``; any other stands for itself."""
    parts = uid.rsplit("_", 2)
    return parts[0] if len(parts) == 3 else uid
