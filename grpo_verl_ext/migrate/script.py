"""Find in a shell script where it starts verl's trainer, and every word that sets a key of that training.

The words are followed through arrays, variables and functions. What cannot be followed ends the reading with
the number of its line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tree_sitter import Node

from grpo_verl_ext.migrate.shell import (
    EXPANSIONS,
    Shell,
    UnreadableScriptError,
    expansions_in,
    line_of,
    nodes_in,
    text_of,
    variable_of,
)
from grpo_verl_ext.runs.verl_run import TRAINER
from grpo_verl_ext.utils.keys import key_of, prefix_of

MODULES = (
    TRAINER[1],
    "verl.experimental.one_step_off_policy.main_ppo",
    "verl.experimental.fully_async_policy.fully_async_main",
)
"""verl's trainers that take a preset."""
_MODULE = re.compile(rf"(?:{'|'.join(map(re.escape, MODULES))}|\S*verl/trainer/main_ppo\.py)(?!\S)")
_IN_TEXT = re.compile(rb"(?:^|(?<=[\s\"'-]))(?P<word>(?:~|\+{0,2})[A-Za-z_][\w./@]*=(?P<value>[^\s\"']*))")
"""Matches an override in a text that a variable holds."""
_LITERALS = ("word", "number", "string_content", "raw_string")
_WORDS = ("command", "array")
_SAYING = ("echo", "printf", "log")
"""Commands that may name the trainer in a text without starting it."""
_ASSIGNING = ("read", "printf")
"""Commands that may set a variable."""


@dataclass(frozen=True)
class Setting:
    """A word of the script that sets a key.

    Attributes:
        start: of the word in the script's bytes.
        end: likewise.
        value: None where only the running script knows it.
    """

    line: int
    start: int
    end: int
    word: str
    value: str | None

    @property
    def key(self) -> str:
        """The dotted key, or the group."""
        return key_of(self.word)

    @property
    def prefix(self) -> str:
        """What stands before the key: nothing, ``+``, ``++`` or ``~``."""
        return prefix_of(self.word)


@dataclass
class Script:
    """A script that was read.

    Attributes:
        places: where an override can be put in, at the end of the last word that must precede it.
    """

    source: bytes
    places: list[int] = field(default_factory=list)
    settings: list[Setting] = field(default_factory=list)


def read_script(source: bytes) -> Script:
    """Return the script's settings.

    Raises:
        UnreadableScriptError: it is not bash, starts none of verl's trainers, or has words that only the
            running script knows.
    """
    reader = _Reader(Shell(source))
    for node in list(nodes_in(reader.shell.root, "word", "string", "raw_string", "heredoc_body")):
        reader.start_at(node)
    if not reader.script.places:
        last = source.count(b"\n") + (not source.endswith(b"\n"))
        raise UnreadableScriptError(
            last, f"the script ends, and none of its commands is python3 -m {MODULES[0]} …"
        )
    reader.script.settings.sort(key=lambda each: each.start)
    return reader.script


class _Reader:
    def __init__(self, shell: Shell) -> None:
        self.shell, self.script = shell, Script(shell.source)
        self._followed = set[int]()

    def start_at(self, node: Node) -> None:
        """Follow the words after the trainer's name, if this part of the script has it."""
        found = _MODULE.search(text_of(node).strip("\"'"))
        if found is None:
            return
        word = _word_around(node)
        holder = word.parent
        if holder is not None and holder.type == "variable_assignment":
            self.script.places.append(node.start_byte + 1 + len(text_of(node)[1:][: found.end()].encode()))
            self._follow_uses(holder)
        elif holder is not None and _MODULE.fullmatch(text_of(node).strip("\"'")):
            self._place_after(word)
            self._follow_after(word)
        elif holder is None or _name_of(holder) not in _SAYING:
            why = "the trainer's command stands in a text for another program"
            raise UnreadableScriptError(line_of(node), why)

    def _place_after(self, module: Node) -> None:
        """Put the preset after the name and Hydra's options, which may not follow an override."""
        last, words = module, _after(module)
        while words and self._first_text(words[0]).startswith("-"):
            last = words.pop(0)
            if last.type == "word" and words and "=" not in text_of(last) + text_of(words[0]):
                last = words.pop(0)
        self.script.places.append(last.end_byte)

    def _first_text(self, word: Node) -> str:
        """Return the beginning of a word; of an array's expansion, that of its first element."""
        for expansion in expansions_in(word)[:1]:
            values = self.shell.assignments.get(variable_of(expansion), [])
            if values and values[0].type == "array" and values[0].named_children:
                return text_of(values[0].named_children[0])
        return text_of(word).strip("\"'")

    def _follow_after(self, word: Node) -> None:
        for each in _after(word):
            self._follow(each)
        holder = _around(word, "variable_assignment", "command")
        if holder is not None and holder.type == "variable_assignment":
            self._follow_uses(holder)

    def _follow_uses(self, assignment: Node) -> None:
        """Follow what stands after the uses of a variable that holds the trainer's name."""
        name = text_of(assignment.named_children[0])
        self._variable(name)
        for expansion in nodes_in(self.shell.root, "simple_expansion", "expansion"):
            word = _word_around(expansion)
            if variable_of(expansion) == name and word.parent is not None and word.parent.type in _WORDS:
                self._follow_after(word)

    def _follow(self, word: Node) -> None:
        if word.id in self._followed:
            return
        self._followed.add(word.id)
        if word.type in EXPANSIONS and variable_of(word) in self.shell.assignments:
            self._expand(word)  # without quotes: as many words as the variable has
            return
        if re.match(r"[^=\"'$]*\{[^{}\"']*,", text_of(word)):
            raise UnreadableScriptError(
                line_of(word), f"bash makes several words of {text_of(word)}; write each of them"
            )
        head = self._head(word)
        if "=" in head or head.startswith("~"):
            value = self.shell.value(word)
            known = None if value is None else value.partition("=")[2]
            self._set(line_of(word), word.start_byte, word.end_byte, head, known)
        else:
            for expansion in expansions_in(word):
                self._expand(expansion)

    def _head(self, word: Node) -> str:
        """Return a word up to its ``=``, or all of it that the script says."""
        text, rest = "", list(_pieces(word))
        while rest and "=" not in text:
            value = self.shell.value(piece := rest.pop(0))
            if value is None:
                if any("=" in text_of(each) for each in rest if each.type in _LITERALS):
                    raise UnreadableScriptError(
                        line_of(piece), f"only the running script knows {text_of(word)}; write what it gives"
                    )
                break
            text += value
        return text

    def _expand(self, expansion: Node) -> None:
        name = variable_of(expansion)
        of_function = name.isdigit() and _around(expansion, "function_definition") is not None
        if expansion.type == "command_substitution" or of_function or _is_indirect(expansion):
            raise _known_at_run_time(expansion)
        _refuse_words_in(expansion)
        if name in ("@", "*"):
            self._calls(expansion)
        elif name in self.shell.assignments:
            self._variable(name)
        else:
            self._of_the_environment(expansion, name)

    def _of_the_environment(self, expansion: Node, name: str) -> None:
        """Leave a variable that the script does not set to whoever sets it, as ``$@``, if nobody else can."""
        for line, why in self._set_otherwise(name):
            raise UnreadableScriptError(line, f"{why}; write what it gives")
        for each in self._commands("source", "."):
            raise UnreadableScriptError(
                line_of(each), f"another file may set ${name}, which the command takes"
            )
        for each in self._commands(*_ASSIGNING):
            if name in map(text_of, each.named_children[1:]):
                raise UnreadableScriptError(
                    line_of(each), f"only the running script knows what {_name_of(each)} gives ${name}"
                )
        if any(nodes_in(expansion, "subscript")):
            raise UnreadableScriptError(line_of(expansion), f"the script does not set the array {name}")

    def _set_otherwise(self, name: str) -> Iterator[tuple[int, str]]:
        """Yield line and words of what gives a variable its value, other than an assignment."""
        for loop in nodes_in(self.shell.root, "for_statement"):
            variable = loop.child_by_field_name("variable")
            if variable is not None and text_of(variable) == name:
                yield line_of(loop), f"only the running script knows which ${name} a turn of the loop has"
        for each in nodes_in(self.shell.root, "expansion"):
            if variable_of(each) == name and {":=", "="} & {*map(text_of, each.children)}:
                yield line_of(each), f"only the running script knows whether {text_of(each)} sets ${name}"

    def _variable(self, name: str) -> None:
        for declared in nodes_in(self.shell.root, "declaration_command"):
            words = {*map(text_of, declared.named_children)}
            if "-n" in words and any(each.partition("=")[0] == name for each in words):
                raise _known_at_run_time(declared)
        for element in nodes_in(self.shell.root, "variable_assignment"):
            target = element.child_by_field_name("name")
            if target is not None and target.type == "subscript" and variable_of(target) == name:
                raise UnreadableScriptError(
                    line_of(element), f"only the running script knows what {text_of(element)} replaces"
                )
        for value in self.shell.assignments[name]:
            if value.id in self._followed:
                continue
            self._followed.add(value.id)
            if value.type == "array":
                for each in _words(value.named_children):
                    self._follow(each)
            else:
                self._text(value)

    def _text(self, value: Node) -> None:
        """Read the overrides in a text that a variable holds, and follow the variables in it."""
        written = self.shell.source[value.start_byte : value.end_byte]
        for expansion in expansions_in(value):
            _refuse_words_in(expansion)
        for found in _IN_TEXT.finditer(written):
            start, end = (value.start_byte + at for at in found.span("word"))
            known = None if b"$" in found["value"] else found["value"].decode()
            self._set(
                line_of(value) + written[: found.start()].count(b"\n"),
                start,
                end,
                found["word"].decode(),
                known,
            )
        for expansion in expansions_in(value):
            if written[expansion.end_byte - value.start_byte :].startswith(b"="):
                raise UnreadableScriptError(
                    line_of(expansion),
                    f"only the running script knows which key {text_of(expansion)} is; write what it gives",
                )
            if not re.search(rb"=\S*$", written[: expansion.start_byte - value.start_byte]):
                self._expand(expansion)

    def _calls(self, expansion: Node) -> None:
        """Follow what the function around ``$@`` is called with; those of the script are the user's."""
        function = _around(expansion, "function_definition")
        if function is None:
            self._refuse_set()
            return
        name = text_of(function.named_children[0])
        for call in self._commands(name):
            for each in _words(call.named_children[1:]):
                self._follow(each)

    def _commands(self, *names: str) -> Iterator[Node]:
        return (each for each in nodes_in(self.shell.root, "command") if _name_of(each) in names)

    def _refuse_set(self) -> None:
        for each in self._commands("set"):
            if "--" in map(text_of, each.named_children[1:]):
                raise UnreadableScriptError(
                    line_of(each), "set gives the script other arguments, which the command takes"
                )

    def _set(self, line: int, start: int, end: int, head: str, value: str | None) -> None:
        word = head if value is None else f"{head.partition('=')[0]}={value}"
        self.script.settings.append(Setting(line, start, end, word if "=" in head else head, value))


def _known_at_run_time(node: Node) -> UnreadableScriptError:
    return UnreadableScriptError(
        line_of(node), f"only the running script knows {text_of(node)}; write what it gives"
    )


def _is_indirect(expansion: Node) -> bool:
    """Whether an expansion is that of a variable which another one names: ``${!NAME}``."""
    return any(text_of(each) == "!" for each in expansion.children)


def _refuse_words_in(expansion: Node) -> None:
    """Refuse ``${NAME:-key=value}`` and the like, which have a word of their own under a condition."""
    if expansion.type == "expansion" and "=" in text_of(expansion):
        raise _known_at_run_time(expansion)


def _name_of(command: Node) -> str:
    name = command.child_by_field_name("name")
    return "" if name is None else text_of(name)


def _around(node: Node, *types: str) -> Node | None:
    above = node.parent
    while above is not None and above.type not in types:
        above = above.parent
    return above


def _word_around(node: Node) -> Node:
    """Return the whole word of a command, an array or an assignment in which a part of the script stands."""
    while node.parent is not None and node.parent.type not in (*_WORDS, "variable_assignment"):
        node = node.parent
    return node


def _after(word: Node) -> list[Node]:
    found, each = [], word.next_named_sibling
    while each is not None:
        found.append(each)
        each = each.next_named_sibling
    return _words(found)


def _words(nodes: Sequence[Node]) -> list[Node]:
    """Return the words among parts of a command or an array, without comments and redirections."""
    return [
        each
        for each in nodes
        if each.type not in ("comment", "variable_assignment") and "redirect" not in each.type
    ]


def _pieces(word: Node) -> Iterator[Node]:
    """Yield the literals and expansions of which a word is put together."""
    if word.type in ("string", "concatenation"):
        for each in word.named_children:
            yield from _pieces(each)
    else:
        yield word
