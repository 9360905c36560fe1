"""Read the responses that verl writes to ``trainer.rollout_data_dir`` and ``trainer.validation_data_dir``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from pydantic import FiniteFloat

from grpo_verl_ext.runs.metrics import verls_lines

_PADDING = re.compile(r"pad[0-9a-f]{32}")
"""Prompt ids of the rows with which verl fills up a batch; it dumps them, too."""
_RESPONSE_OF_PROMPT = re.compile(r"_[^_]*_\d+$")
"""The end of verl's key ``<prompt>_<session>_<output>``; any other key is the prompt's."""


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
    lines = verls_lines(file, _Line, CorruptDumpError, what="dump", only_whole=False)
    return [
        Response(prompt, line.input, line.output, line.gts, line.score, line.step)
        for line in lines
        if not _PADDING.fullmatch(prompt := _RESPONSE_OF_PROMPT.sub("", line.uid))
    ]


@dataclass(frozen=True)
class _Line:
    input: str
    output: str
    score: FiniteFloat
    step: int
    uid: str
    gts: object = None
