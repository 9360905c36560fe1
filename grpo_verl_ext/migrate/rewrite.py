"""Take the words out of a script that contradict a preset, and put the preset in."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from grpo_verl_ext.catalogue import ALGORITHMS, PRESETS, enter_foreign, wiring
from grpo_verl_ext.migrate.script import Script, Setting
from grpo_verl_ext.migrate.shell import UnreadableScriptError
from grpo_verl_ext.utils.errors import Problem, as_typed
from grpo_verl_ext.utils.keys import AGENT_LOOP, MODE, moved_key

_GROUP = "algo"


class UnknownPresetError(ValueError):
    """There is no such preset."""


@dataclass(frozen=True)
class Migrated:
    """A script with a preset.

    Attributes:
        changes: a sentence for each changed line, with its number.
    """

    source: bytes
    changes: list[str]


def migrate(script: Script, preset: str) -> Migrated:
    """Return the script with the preset in the place of the words that contradict it.

    Raises:
        UnknownPresetError: there is none of this name.
        UnreadableScriptError: a word sets a whole section of which the preset has keys, or a key of older
            verl is put together of several words.
    """
    enter_foreign()
    if preset not in PRESETS:
        near = get_close_matches(preset.lower().replace("-", "_"), PRESETS, n=1)
        fix = f"--algo {near[0]}" if near else "--algo <one of them>"
        raise UnknownPresetError(str(Problem("--algo", preset, fix, valid=tuple(sorted(PRESETS)))))
    edits, changes = list[tuple[int, int, bytes]](), list[str]()
    for written in script.settings:
        setting = replace(written, word=written.word.replace(written.key, moved_key(written.key), 1))
        if contradicts(setting, preset):
            edits.append((*_removed(script.source, setting), b""))
            changes.append(f"{_written(script.source, setting)} is out; {_instead(setting, preset)}")
            continue
        if setting.key != written.key:
            edits.append((*_place_of_key(script.source, written), setting.key.encode()))
            changes.append(f"line {setting.line}: {written.key} is {setting.key} now, which verl reads")
        if setting.prefix == "+" and setting.key in PRESETS[preset].leaves:
            edits.append((*_plus_of(script.source, setting), b"++"))
            changes.append(
                f"{_written(script.source, setting)} begins with ++ now, for the preset has the key"
            )
    edits += [(at, at, _preset_after(script.source, at, preset)) for at in script.places]
    source, cut = script.source, len(script.source)
    for start, end, text in sorted(edits, reverse=True):
        source = source[:start] + text + source[min(end, cut) :]  # the space between two words is cut once
        cut = start
    return Migrated(source, changes)


def contradicts(setting: Setting, preset: str) -> bool:
    """Whether a word of the script sets a key of the preset to another value, or to one that is not known.

    Raises:
        UnreadableScriptError: it sets a whole section of which the preset has keys.
    """
    leaves, key = PRESETS[preset].leaves, setting.key
    if key == _GROUP:
        return True
    if any(leaf.startswith(f"{key}.") for leaf in leaves):
        raise UnreadableScriptError(
            setting.line,
            f"{key} is a section of which the preset sets keys; write each of its keys as a word",
        )
    is_own = key in (MODE, AGENT_LOOP) and str(setting.value).startswith("grpo_ext_")
    if key not in leaves or key in wiring(preset) or is_own:
        return False
    return setting.prefix == "~" or _as_hydra_reads(setting.value) != leaves[key]


class _Unknown:
    """Equals nothing: a value that is not known, or that Hydra would refuse."""


def _as_hydra_reads(value: str | None) -> Any:
    if value is None:
        return _Unknown()
    try:
        return OverridesParser.create().parse_override(f"key={value}").value()
    except HydraException:
        return _Unknown()


def _written(source: bytes, setting: Setting) -> str:
    """Return the line's number, the word as it is written, and its value where a variable has it."""
    word = source[setting.start : setting.end].decode(errors="replace")
    said = setting.value if setting.value is not None else "only the running script knows the value"
    return f"line {setting.line}: {word}{f' ({said})' if '$' in word else ''}"


def _instead(setting: Setting, preset: str) -> str:
    if setting.key == _GROUP:
        return f"the preset is {preset}"
    source = PRESETS[preset].comments.get(setting.key, ALGORITHMS[preset].paper)
    return f"the preset has {as_typed(PRESETS[preset].leaves[setting.key])}: {source}"


_SEPARATOR = rb"(?:[ \t\r\n]|\\\r?\n)*"
_NOTHING_FOLLOWS = re.compile(rb"[ \t]*(?:\\?\r?\n|[)\"']|$)")


def _removed(source: bytes, setting: Setting) -> tuple[int, int]:
    """Return where to cut so that the rest is as before: with the space before the word, or that after it.

    The space after it where another word follows on its line.
    """
    start, end = setting.start, setting.end
    if _NOTHING_FOLLOWS.match(source, end):
        before = re.search(_SEPARATOR + rb"$", source[:start])
        return (before.start() if before else start), end
    after = re.compile(rb"[ \t]*").match(source, end)
    return start, after.end() if after else end


def _plus_of(source: bytes, setting: Setting) -> tuple[int, int]:
    at = source.index(b"+", setting.start, setting.end)
    return at, at + 1


def _place_of_key(source: bytes, setting: Setting) -> tuple[int, int]:
    key = setting.key.encode()
    at = source.find(key, setting.start, setting.end)
    if at < 0:
        raise UnreadableScriptError(setting.line, f"write {setting.key} as one word, for verl has moved it")
    return at, at + len(key)


def _preset_after(source: bytes, at: int, preset: str) -> bytes:
    """Return the preset's word with the space that the words beside it have."""
    word = f"+{_GROUP}@_global_={preset}".encode()
    beside = re.compile(_SEPARATOR).match(source, at)
    space = beside[0] if beside and beside[0].strip(b" \t") and b"\\" in beside[0] else b" "
    return space + word
