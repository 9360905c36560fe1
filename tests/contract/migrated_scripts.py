"""Count how many of verl's own example scripts `grpo-verl-ext migrate` makes right.

    python tests/contract/migrated_scripts.py CHECKOUT [--algo NAME …] [--places GLOB …]

CHECKOUT is a clone of verl. Each script is run with stand-ins (`shell_scripts`) as it is and as `migrate`
writes it, and the arguments of verl's trainer are composed with Hydra. A script is right if the composed
configuration has every value of the preset, and for each other key the value that the script has without it.
Scripts whose arguments verl's own validation refuses are counted apart.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from omegaconf import OmegaConf
from shell_scripts import Folder, Invocation
from verl_scripts import MAINS, Judge

from grpo_verl_ext.catalogue import PRESETS, left_to_user
from grpo_verl_ext.migrate.rewrite import migrate
from grpo_verl_ext.migrate.script import read_script
from grpo_verl_ext.migrate.shell import UnreadableScriptError
from grpo_verl_ext.utils.keys import moved_key

PLACES = ("examples/*_trainer/*.sh",)
RIGHT, UNREADABLE, REFUSED, WRONG, NOT_STARTED = (
    "right",
    "not read",
    "refused by verl itself",
    "WRONG",
    "starts no trainer here",
)


def outcomes(
    checkout: Path, algos: Sequence[str], places: Sequence[str]
) -> Iterator[tuple[str, str, str, str]]:
    """Yield script, preset, outcome and what to know of it."""
    with tempfile.TemporaryDirectory() as made:
        folder = Folder(checkout, Path(made) / "scripts")
        judge = Judge(folder.checkout)
        with mock.patch.dict(os.environ, {"HOME": str(folder.home)}):
            for script in sorted({file for place in places for file in folder.checkout.glob(place)}):
                before = started(folder, script)
                for algo in algos:
                    name = str(script.relative_to(folder.checkout))
                    yield name, algo, *outcome(folder, judge, script, before, algo)


def started(folder: Folder, script: Path) -> list[Invocation]:
    """The trainer's command lines of a script."""
    return [each for each in folder.run(script).invocations if each.module in MAINS]


def outcome(
    folder: Folder, judge: Judge, script: Path, before: Sequence[Invocation], algo: str
) -> tuple[str, str]:
    """What became of one script with one preset."""
    source = script.read_bytes()
    try:
        migrated = migrate(read_script(source), algo).source
    except UnreadableScriptError as error:
        return UNREADABLE, str(error)
    if not before:
        return NOT_STARTED, ""
    refusals = [verdict.verl for each in before if (verdict := judge.verdict(each, None)).verl]
    if refusals:
        return REFUSED, str(refusals[0])
    try:
        script.write_bytes(migrated)
        after = started(folder, script)
    finally:
        script.write_bytes(source)
    if len(after) != len(before):
        return WRONG, f"{len(before)} command lines before, {len(after)} after"
    faults = [fault for pair in zip(before, after, strict=True) for fault in _faults(judge, *pair, algo)]
    return (WRONG, "; ".join(faults)) if faults else (RIGHT, "")


def _faults(judge: Judge, before: Invocation, after: Invocation, algo: str) -> Iterator[str]:
    old, new = judge.composed(before, None), judge.composed(after, None)
    if new.refusal is not None:
        yield new.refusal
        return
    was, now = (dict(_leaves(OmegaConf.to_container(each.config), "")) for each in (old, new))
    fixed = {key: value for key, value in PRESETS[algo].leaves.items() if key not in left_to_user(algo)}
    given = {moved_key(word.lstrip("+~").partition("=")[0]) for word in before.overrides}
    old_names = {key: value for key, value in was.items() if moved_key(key) != key}
    was |= dict.fromkeys(old_names)
    was |= {moved_key(key): value for key, value in old_names.items() if value not in (None, {})}
    for key in was.keys() | now.keys():
        free = key in PRESETS[algo].leaves and key not in given
        expected = fixed[key] if key in fixed else PRESETS[algo].leaves[key] if free else was.get(key)
        if now.get(key) != expected:
            yield f"{key} is {now.get(key)!r}, not {expected!r}"


def _leaves(values: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(values, dict) and values:
        for key, value in values.items():
            yield from _leaves(value, f"{name}.{key}".lstrip("."))
    else:
        yield name, values


def main(arguments: Sequence[str] | None = None) -> int:
    """Print every script that is not right, and the counts; the status is 1 if one is wrong."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--algo", nargs="*", default=["grpo", "dapo", "gvpo"])
    parser.add_argument("--places", nargs="*", default=list(PLACES))
    given = parser.parse_args(arguments)
    counts = dict[tuple[str, str], int]()
    for script, algo, what, why in outcomes(given.checkout, given.algo, given.places):
        counts[algo, what] = counts.get((algo, what), 0) + 1
        if what != RIGHT:
            print(f"{algo} {what}: {script}: {' '.join(why.split())[:300]}", flush=True)
    for (algo, what), number in sorted(counts.items()):
        print(f"{algo}: {number} {what}")
    return int(any(what == WRONG for _, what in counts))


if __name__ == "__main__":
    sys.exit(main())
