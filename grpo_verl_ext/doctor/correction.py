"""Put the lines to type of the doctor's findings into a training's command."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass

from grpo_verl_ext.doctor.configuration import all_findings, plain
from grpo_verl_ext.preflight.with_verls import exit_status, print_findings
from grpo_verl_ext.runs.verl_run import TRAINER
from grpo_verl_ext.utils.console import make_console
from grpo_verl_ext.utils.errors import Finding, Line, Severity
from grpo_verl_ext.utils.keys import key_of


@dataclass(frozen=True)
class _Correction:
    """A command with what the findings say to type.

    Attributes:
        overrides: the corrected command's.
        mended: findings that were followed, in this order.
        left: findings of the corrected command; what would mend them is not known, or a choice of the user.
    """

    overrides: list[str]
    mended: list[Finding]
    left: list[Finding]


def correct(overrides: Sequence[str], **options: str) -> _Correction:
    """Follow the findings one after the other, since one may be the cause of others, each line once.

    Args:
        overrides: key=value.
        options: ``config_path`` and ``config_name``, if given.
    """
    words, mended = list(overrides), list[Finding]()
    while True:
        found = list(all_findings(words, **options))
        followed = [each.problem.fix for each in mended]
        wrong = (each for each in found if each.severity is not Severity.NOTE)
        new = (each for each in wrong if each.problem.fix not in followed)
        first = next((each for each in new if _mended(each, words) != words), None)
        if first is None:
            return _Correction(words, mended, found)
        words = _mended(first, words)
        mended.append(first)


def _mended(finding: Finding, words: Sequence[str]) -> list[str]:
    line = finding.problem.fix
    return put_in(line, words) if isinstance(line, Line) else list(words)


def put_in(line: Line, overrides: Sequence[str]) -> list[str]:
    """Return the overrides of a command with the words of a line to type."""
    kept = [
        word
        for word in overrides
        if not any(f"{key_of(word)}.".startswith(f"{key}.") for key in line.without)
    ]
    for word in line.words:
        kept = list(_with(kept, word))
    return kept


def _with(overrides: Sequence[str], word: str) -> Iterator[str]:
    """Yield the overrides with one more, in the place of the first that they have for its key.

    The command's own ``+`` stays. ``~key`` removes the override that has added the key; where none has, it is
    an override itself.
    """
    key, removes = key_of(word), word.startswith("~")
    mine = [each for each in overrides if key_of(each) == key]
    if mine and not removes and not word.startswith("++"):
        word = f"{mine[-1].partition('=')[0]}={word.partition('=')[2]}"
    for each in overrides:
        if key_of(each) != key:
            yield each
        elif each is mine[0] and not removes:
            yield word
    if not mine:
        yield word


def print_correction(overrides: Sequence[str], *, as_json: bool, **options: str) -> int:
    """Print the corrected command, and to stderr what was changed in it and what is left; return the status.

    Args:
        overrides: key=value.
        as_json: print all of it as JSON.
        options: ``config_path`` and ``config_name``, if given.
    """
    with redirect_stdout(sys.stderr):  # verl prints while it validates
        correction = correct(overrides, **options)
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    command = ["python3", *TRAINER, *flags, *correction.overrides]
    if as_json:
        mended, left = ([plain(each) for each in found] for found in (correction.mended, correction.left))
        print(json.dumps({"command": command, "mended": mended, "findings": left}, indent=2))
        return exit_status(correction.left)
    console = make_console(stderr=True)
    for each in correction.mended:
        console.print(f"mended {each.check}: {each.problem}")
    print_findings(correction.left, console)
    print(" \\\n    ".join([shlex.join(command[:3]), *map(shlex.quote, command[3:])]))
    return exit_status(correction.left)
