"""Read the responses that verl writes to ``trainer.rollout_data_dir`` and ``trainer.validation_data_dir``."""

from __future__ import annotations

import re
from dataclasses import MISSING, dataclass, fields
from pathlib import Path

from pydantic import FiniteFloat

from grpo_verl_ext.runs.metrics import verls_lines

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
        number: of the output among those of one response, from 0.
    """

    prompt_id: str
    prompt: str
    output: str
    truth: object
    score: float
    step: int
    number: int = 0


def dump_file(folder: Path, step: int) -> Path:
    """Return the path of the file that verl writes for a step."""
    return folder / f"{step}.jsonl"


def read_dump(file: Path) -> list[Response]:
    """Return the responses in a file, in verl's order, without padding.

    Raises:
        CorruptDumpError: it cannot be read, or a line is not a record that verl wrote. It is left in place.
    """
    lines = verls_lines(
        file, _Line, CorruptDumpError, what="verl's dump", line=_NO_RESPONSE, only_whole=False
    )
    responses = [line.response() for line in lines]
    return [response for response in responses if not _PADDING.fullmatch(response.prompt_id)]


@dataclass(frozen=True)
class _Line:
    input: str
    output: str
    score: FiniteFloat
    step: int
    uid: str
    gts: object = None

    def response(self) -> Response:
        prompt, number = _prompt_and_number(self.uid)
        return Response(prompt, self.input, self.output, self.gts, self.score, self.step, number)


_NO_RESPONSE = "no response of verl's dump; valid is an object with " + ", ".join(
    field.name for field in fields(_Line) if field.default is MISSING
)


def _prompt_and_number(uid: str) -> tuple[str, int]:
    """Return the first and the last part of verl's key ``<prompt>_<session>_<output>``.

    Any other key is the prompt's.
    """
    parts = uid.rsplit("_", 2)
    return (parts[0], int(parts[2])) if len(parts) == 3 and parts[2].isdecimal() else (uid, 0)
