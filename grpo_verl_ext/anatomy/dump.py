"""The files of verl's ``trainer.rollout_data_dir``, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from grpo_verl_ext.runs.dumps import CorruptDumpError, Response, read_dump

HOW_TO_DUMP = "Valid is what a training leaves that was given: trainer.rollout_data_dir=<folder>"


class AnatomyError(ValueError):
    """A dump, or what it is to be looked at with, cannot be used; the message has the line to type."""


def read_steps(dump: Path) -> Iterator[list[Response]]:
    """The responses of each step, one file in memory at a time.

    Args:
        dump: a folder with ``1.jsonl``, ``2.jsonl``, …, or one such file; other names are not verl's.

    Raises:
        AnatomyError: there is nothing there, or a line is no record of verl's; the file is left as it is.
    """
    step = attrgetter("step")
    for file in _files(dump):
        try:
            responses = read_dump(file)
        except CorruptDumpError as error:
            raise AnatomyError(str(error)) from error
        for _, of_step in groupby(sorted(responses, key=step), key=step):
            yield list(of_step)


def _files(dump: Path) -> list[Path]:
    if dump.is_file():
        return [dump]
    if not dump.is_dir():
        raise AnatomyError(f"{dump} is neither a folder nor a file. {HOW_TO_DUMP}")
    files = [file for file in dump.glob("*.jsonl") if file.stem.isdigit()]
    if not files:
        raise AnatomyError(f"{dump} has no 1.jsonl, 2.jsonl, …. {HOW_TO_DUMP}")
    return sorted(files, key=lambda file: int(file.stem))
