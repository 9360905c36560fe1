"""Read a shell script without running it: its commands, arrays and variables, with their places in the text.

tree-sitter's grammar of bash gives the places, which an evaluation by bash would not; and nothing in the
script is started.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

_PARSER = Parser(Language(tree_sitter_bash.language()))
EXPANSIONS = ("simple_expansion", "expansion")


class UnreadableScriptError(ValueError):
    """The script cannot be read on; the message begins with the number of the line."""

    def __init__(self, line: int, why: str) -> None:
        super().__init__(f"line {line}: {why}")


def line_of(node: Node) -> int:
    """Return the number of the line in which a part of the script begins."""
    return int(node.start_point.row) + 1


def nodes_in(node: Node, *types: str) -> Iterator[Node]:
    """Yield the parts of these types, in the script's order."""
    if node.type in types:
        yield node
    for child in node.named_children:
        yield from nodes_in(child, *types)


def text_of(node: Node) -> str:
    """Return a part as it is written."""
    assert node.text is not None
    return str(node.text.decode(errors="replace"))


def variable_of(expansion: Node) -> str:
    """Return the name of the variable whose value stands in the place of an expansion."""
    names = nodes_in(expansion, "variable_name", "special_variable_name")
    return next((text_of(name) for name in names), "")


class Shell:
    """A script that bash would parse.

    Raises:
        UnreadableScriptError: it would not, or this grammar does not know what it has.
    """

    def __init__(self, source: bytes) -> None:
        self.source = source
        self.root = _PARSER.parse(source).root_node
        for node in _faults(self.root):
            written = text_of(node).splitlines() or [""]
            raise UnreadableScriptError(line_of(node), f"this is not read as bash: {written[0][:60]}")

    @cached_property
    def assignments(self) -> dict[str, list[Node]]:
        """Variable → the values that the script gives it."""
        found: dict[str, list[Node]] = {}
        for node in nodes_in(self.root, "variable_assignment"):
            name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
            if name is not None and value is not None:
                found.setdefault(text_of(name).partition("[")[0], []).append(value)
        return found

    def value(self, node: Node, seen: tuple[str, ...] = ()) -> str | None:
        """Return the text of a word where the script alone says it, defaults of ``${NAME:-…}`` included.

        None for what only the running script knows.
        """
        if node.type in ("word", "number", "string_content"):
            return text_of(node).replace("\\", "")
        if node.type == "raw_string":
            return text_of(node)[1:-1]
        if node.type in ("string", "concatenation"):
            return self._joined(node.named_children, seen)
        return self._expanded(node, seen) if node.type in EXPANSIONS else None

    def _expanded(self, node: Node, seen: tuple[str, ...]) -> str | None:
        name, given = variable_of(node), []
        if name not in seen:
            given = self.assignments.get(name, [])
        if given:
            return self.value(given[0], (*seen, name)) if len(given) == 1 else None
        if not any(text_of(each) in (":-", "-") for each in node.children):
            return None
        default = [each for each in node.named_children if each.type != "variable_name"]
        return self._joined(default, seen)

    def _joined(self, parts: Iterable[Node], seen: tuple[str, ...]) -> str | None:
        values = [self.value(each, seen) for each in parts]
        return None if None in values else "".join(map(str, values))


def _faults(node: Node) -> Iterator[Node]:
    if node.is_error or node.is_missing:
        yield node
    elif node.has_error:
        for child in node.children:
            yield from _faults(child)


def expansions_in(word: Node) -> list[Node]:
    """Return the expansions of a word, commands in ``$(…)`` and arithmetic included."""
    return list(nodes_in(word, *EXPANSIONS, "command_substitution", "arithmetic_expansion"))
