"""Take a training's command line as it stands in a script, and leave out what is not the training's."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from grpo_verl_ext.runs.verl_run import TRAINER

MODULE = TRAINER[1]
_FILE = "verl/trainer/main_ppo.py"
_END = re.compile(r"\d*>.*|&>.*|<.*|\|.*|&+|;")
"""Matches a word with which the shell's part of a line begins."""
_ARGUMENTS = re.compile(r"\"?\$\{?[@*].*")
"""Matches a script's own arguments, such as ``"$@"``."""


def read(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the doctor's arguments for a training's line, and the words that are left out.

    The line may be one quoted word. One without verl's module is kept as it is. The module stays as
    ``-m MODULE``; what precedes it is left out, except options of the doctor.
    """
    line = [part for word in words for part in _parts(word)]
    module = next((at for at, word in enumerate(line) if word == MODULE or word.endswith(_FILE)), None)
    if module is None:
        return list(words), []
    end = next((at for at, word in enumerate(line) if at > module and _END.fullmatch(word)), len(line))
    before, after = line[:module], line[module + 1 : end]
    own = [word for word in before if word in ("--json", "--fix") or word.startswith("--config-")]
    foreign = [word for word in after if _ARGUMENTS.fullmatch(word)]
    kept = [word for word in after if word.strip("\\ \n") and word not in foreign]
    left_out = [*(word for word in before if word not in own), *foreign, *line[end:]]
    return [*own, "-m", MODULE, *kept], left_out


def _parts(word: str) -> Iterator[str]:
    """Split a word that is a whole line, as the shell would."""
    if not re.search(rf"({re.escape(MODULE)}|{re.escape(_FILE)})\s", word):
        yield word
        return
    try:
        yield from shlex.split(word.replace("\\\n", " "))
    except ValueError:  # an open quotation mark, of which Hydra tells
        yield word
