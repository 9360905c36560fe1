"""Take a training's command line as it stands in a script, and leave out what is not the training's."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from grpo_verl_ext.runs.verl_run import TRAINER

MODULE = TRAINER[1]
_FILE = "verl/trainer/main_ppo.py"
_END = re.compile(r"\d*>.*|&>.*|<.*|\|.*|&+|;")
"""Matches a word with which the shell's part of a line begins."""
_ARGUMENTS = re.compile(r"\"?\$\{?[@*].*")
"""Matches a script's own arguments, such as ``"$@"``."""


@dataclass(frozen=True)
class PastedLine:
    """The arguments of ``grpo-verl-ext doctor``, and the words that it does not examine."""

    arguments: list[str]
    left_out: list[str]


def read(words: Sequence[str]) -> PastedLine:
    """Return the doctor's arguments for a line, which may be one quoted word, or for the words of one.

    A line without verl's module is kept as it is. The module stays as ``-m MODULE``; what precedes it is left
    out, except options of the doctor.
    """
    line = [part for word in words for part in _parts(word)]
    module = next((at for at, word in enumerate(line) if word == MODULE or word.endswith(_FILE)), None)
    if module is None:
        return PastedLine(list(words), [])
    end = next((at for at, word in enumerate(line) if at > module and _END.fullmatch(word)), len(line))
    before, after = line[:module], line[module + 1 : end]
    own = [word for word in before if word in ("--json", "--fix") or word.startswith("--config-")]
    foreign = [word for word in after if _ARGUMENTS.fullmatch(word)]
    kept = [word for word in after if word.strip("\\ \n") and word not in foreign]
    left_out = [*(word for word in before if word not in own), *foreign, *line[end:]]
    return PastedLine([*own, "-m", MODULE, *kept], left_out)


def _parts(word: str) -> Iterator[str]:
    """Split a word that is a whole line, as the shell would."""
    if not re.search(rf"({re.escape(MODULE)}|{re.escape(_FILE)})\s", word):
        yield word
        return
    try:
        yield from shlex.split(word.replace("\\\n", " "))
    except ValueError:  # an open quotation mark, of which Hydra tells
        yield word
