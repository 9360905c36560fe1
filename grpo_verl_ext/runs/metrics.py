"""Read what verl wrote: its file logger's metrics, over all attempts of a run, and dumps of responses."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, FiniteFloat

from grpo_verl_ext.utils.documents import read_lines

Metrics = dict[int, dict[str, float]]
"""Step → name → value."""

TRAINED = "training/global_step"
"""Metric that verl logs with every training step, and not with a validation alone."""


class CorruptFileError(ValueError):
    """A file cannot be read, or has a line that verl did not write; the message says where."""


def read_metrics(files: Iterable[Path]) -> Metrics:
    """Return metrics by step; a later file wins for a step that it repeats.

    verl's logger writes null for NaN and for infinities; here they are NaN, and so is a number above 1e150,
    whose square may overflow. Values that are not numbers, such as lists, are left out.
    A last line without a line end is skipped: verl was killed, or is still writing.
    """
    metrics: Metrics = {}
    for file in files:
        for record in read_lines(file, _Record, CorruptFileError, what="verl's metrics", only_whole=True):
            metrics.setdefault(record.step, {}).update(
                (name, float(value) if value is not None and abs(value) <= 1e150 else math.nan)
                for name, value in record.data.items()
                if value is None or isinstance(value, int | float)
            )
    return metrics


@dataclass(frozen=True)
class _Record:
    step: Annotated[int, Field(ge=0, lt=2**31)]
    data: dict[str, Any]


_PADDING = re.compile(r"pad[0-9a-f]{32}")
"""Prompt ids of the rows with which verl fills up a batch; it dumps them, too."""
_NUMBERS = re.compile(r"_[^_]*_\d+$")
"""The end of verl's key ``<prompt>_<session>_<output>``; any other key is the prompt's."""


@dataclass(frozen=True)
class Response:
    """One line of a dump; its texts are without special tokens, as verl writes them.

    Attributes:
        prompt_id: equal for all responses to one prompt of a step.
        truth: the ground truth, as in the dataset; None if it has none.
    """

    prompt_id: Annotated[str, Field(alias="uid"), AfterValidator(partial(_NUMBERS.sub, ""))]
    prompt: Annotated[str, Field(alias="input")]
    output: str
    truth: Annotated[object, Field(alias="gts", default=None)]
    score: FiniteFloat
    step: int


def read_dump(file: Path) -> list[Response]:
    """Return the responses in a file, ``<step>.jsonl``, in verl's order, without padding."""
    responses = read_lines(file, Response, CorruptFileError, what="verl's dump")
    return [response for response in responses if not _PADDING.fullmatch(response.prompt_id)]
