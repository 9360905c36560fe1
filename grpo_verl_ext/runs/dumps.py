"""Read the responses that verl writes to ``trainer.rollout_data_dir`` and ``trainer.validation_data_dir``."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_verl_ext.utils.typed_json import PARSE_ERRORS, typed

FIELDS = {"input": str, "output": str, "score": float, "step": int, "uid": str}
"""Keys read from each line, beside ``gts``, and their types in JSON."""

_PADDING = re.compile(r"pad[0-9a-f]{32}")
"""Prompt ids of the rows with which verl fills up a batch; it dumps them, too."""


class CorruptDumpError(ValueError):
    """A dump cannot be read, or a line is not a response that verl wrote; the message names file and line."""


@dataclass(frozen=True)
class Response:
    """One line of a dump; its texts are without special tokens, as verl writes them.

    Attributes:
        prompt_id: equal for all responses to one prompt of a step.
        truth: the ground truth, as in the dataset; None if it has none.
    """

    prompt_id: str
    prompt: str
    output: str
    truth: object
    score: float
    step: int


def dump_file(folder: Path, step: int) -> Path:
    """Return the path of the file that verl writes for a step."""
    return folder / f"{step}.jsonl"


def read_dump(file: Path) -> list[Response]:
    """Return the responses in a file, in verl's order, without padding.

    Raises:
        CorruptDumpError: it cannot be read, or a line is not a record that verl wrote. It is left in place.
    """
    try:
        # As bytes: verl does not escape Unicode line separators, at which text mode would split a line.
        with file.open("rb") as lines:
            responses = [_parsed(file, number, line) for number, line in enumerate(lines, start=1)]
    except OSError as error:
        raise CorruptDumpError(
            f"{file} cannot be read as verl's dump ({error.strerror}). It was left in place; move it away "
            f"to continue without it"
        ) from error
    return [response for response in responses if not _PADDING.fullmatch(response.prompt_id)]


def _parsed(file: Path, number: int, line: bytes) -> Response:
    try:
        return _response(json.loads(line))
    except PARSE_ERRORS as error:
        raise CorruptDumpError(
            f"{file}, line {number}, is no response of verl's dump ({error!r}); valid is an object "
            f"with {', '.join(FIELDS)}. It was left in place; move it away to continue without it"
        ) from error


def _response(content: Any) -> Response:
    record = typed(content, FIELDS)
    prompt, output, score = record["input"], record["output"], float(record["score"])
    if not math.isfinite(score):
        raise ValueError(f"score is {score}")
    # Half of a surrogate pair is not text: neither a tokenizer nor a file accepts it.
    (prompt + output).encode("utf-8")
    return Response(_prompt_id(record["uid"]), prompt, output, record.get("gts"), score, record["step"])


def _prompt_id(uid: str) -> str:
    """Return the prompt's part of verl's key ``<prompt>_<rollout>_<output>``, or any other key unchanged."""
    parts = uid.rsplit("_", 2)
    return parts[0] if len(parts) == 3 else uid
