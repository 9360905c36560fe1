"""Kinds of properties of verl's names that we rely on, with a message for each that has changed.

Each kind yields phrases whose subject is the name: "has lost its parameter metrics".
"""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import ClassVar, Protocol, TypeGuard

from grpo_verl_ext.contract.verl_sources import OURS, Found, Function, GoneError, Sources, defined, statements

ANY_MORE = "…"
"""Stands for parameters that our function takes and hands on, whatever they are."""


class Reliance(Protocol):
    """A kind of reliance; ``repr`` of it tells it from others of its kind."""

    verb: ClassVar[str]
    """What those who rely on it do."""

    def moved(self, sources: Sources, where: str) -> Iterator[str]:
        """Phrases for what is not as it was; `GoneError` where the name is gone."""
        ...


@dataclass(frozen=True)
class Seam:
    """One thing of verl's that some of our modules rely on."""

    where: str
    relies: Reliance
    by: tuple[str, ...]
    """Our modules and presets, without the package's name."""

    def moved(self, sources: Sources) -> Iterator[str]:
        """A sentence for each thing that is not as it was."""
        who = ", ".join(f"{full_name(name)} {self.relies.verb}" for name in self.by)
        try:
            for phrase in self.relies.moved(sources, self.where):
                yield f"{self.where} {phrase}; {who}"
        except GoneError as error:
            gone = "is gone" if str(error) == self.where else f"cannot be looked at, for {error} is gone"
            yield f"{self.where} {gone}; {who}"


def full_name(name: str) -> str:
    """Of a module of ours, or of a preset's file."""
    return f"{OURS}/{name}" if name.endswith(".yaml") else f"{OURS}.{name}"


class _Kind:
    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(repr(value) for value in vars(self).values())})"


class Name(_Kind):
    """The name is there."""

    verb: ClassVar[str] = "imports it"

    def moved(self, sources: Sources, where: str) -> Iterator[str]:
        sources.find(where)
        yield from ()


class Hook(Name):
    """A module that we wait for."""

    verb: ClassVar[str] = "waits for its import"


class Program(Name):
    """A module that we start."""

    verb: ClassVar[str] = "starts it"


class Overridden(_Kind):
    """A method of verl's that one of our classes replaces: these parameters, no other but for `ANY_MORE`."""

    verb: ClassVar[str] = "overrides it"

    def __init__(self, *names: str) -> None:
        self.parameters = names

    def moved(self, sources: Sources, where: str) -> Iterator[str]:
        yield from changed(self.parameters, parameters(sources.find(where)))


class Replaced(Overridden):
    """The same for a function that we patch."""

    verb: ClassVar[str] = "patches it"


@dataclass(frozen=True)
class Called:
    """A function that we call; ``by_name`` are the arguments that we name."""

    verb: ClassVar[str] = "calls it"
    by_place: tuple[str, ...] = ()
    by_name: tuple[str, ...] = ()

    def moved(self, sources: Sources, where: str) -> Iterator[str]:
        found = sources.find(where)
        if isinstance(found.node, ast.ClassDef) and not sources.look_up(f"{where}.__init__"):
            fields = [name for name in self.by_name if name != ANY_MORE]
            yield from Members(*fields).moved(sources, where)
            return
        there = parameters(found)
        takes_any = any(name.startswith("**") for name in there)
        hands_any = ANY_MORE in self.by_name
        for position, name in enumerate(self.by_place):
            if name not in there:
                yield f"has lost its parameter {name}"
            elif there.index(name) != position:
                yield f"takes {there[position]} where it took {name}"
        for name in self.by_name:
            if name not in (*there, ANY_MORE) and not takes_any:
                yield f"has lost its parameter {name}"
        for name in required(found):
            if name not in (*self.by_place, *self.by_name) and not hands_any:
                yield f"now asks for {name}"


class Members(_Kind):
    """Methods and attributes of a class that we use, inherited ones included."""

    verb: ClassVar[str] = "uses it"

    def __init__(self, *names: str) -> None:
        self.names = names

    def moved(self, sources: Sources, where: str) -> Iterator[str]:
        there = {name for owner in sources.lineage(sources.find(where)) for name in members(owner.node)}
        for name in self.names:
            if name not in there:
                yield f"has lost its {name}"


@dataclass(frozen=True)
class Interface:
    """An abstract class that one of ours implements: these methods, and no other abstract one."""

    verb: ClassVar[str] = "implements it"
    methods: Mapping[str, tuple[str, ...]]

    def moved(self, sources: Sources, where: str) -> Iterator[str]:
        found = sources.find(where)
        there = {node.name: node for node in statements(found.node) if isinstance(node, Function)}
        for name, expected in self.methods.items():
            if name not in there:
                yield f"has lost its {name}"
            else:
                for phrase in changed(expected, parameters(Found(found.module, there[name]))):
                    yield f"has a {name} that {phrase}"
        for name, node in there.items():
            if name not in self.methods and any("abstract" in ast.unparse(d) for d in node.decorator_list):
                yield f"has a new abstract method {name}"


@dataclass(frozen=True)
class Derived:
    """A class that is one of another."""

    verb: ClassVar[str] = "derives from it"
    base: str

    def moved(self, sources: Sources, where: str) -> Iterator[str]:
        base = sources.find(self.base).node
        if all(owner.node is not base for owner in sources.lineage(sources.find(where))):
            yield f"is no {self.base.rpartition('.')[2]} any more"


@dataclass(frozen=True)
class Hands:
    """A function of verl's that calls what is ours, or what we override."""

    verb: ClassVar[str] = "answers that call"
    to: str
    by_place: int = 0
    by_name: tuple[str, ...] = ()

    def moved(self, sources: Sources, where: str) -> Iterator[str]:
        made = [call for call in calls(sources.find(where).node) if _is_call_of(call, self.to)]
        if not made:
            yield f"does not call {self.to}"
        for call in made:
            if len(call.args) != self.by_place:
                yield f"hands {self.to} {len(call.args)} arguments by place, where it handed {self.by_place}"
            named = {keyword.arg for keyword in call.keywords}
            for name in self.by_name:
                if name not in named:
                    yield f"does not hand {self.to} its argument {name}"


class InOrder(_Kind):
    """A function of verl's in which every call of one of these stands before every call of the next.

    A name may go on with the beginning of the arguments, where other calls shall not count.
    """

    verb: ClassVar[str] = "relies on the order"

    def __init__(self, *names: str) -> None:
        self.names = names

    def moved(self, sources: Sources, where: str) -> Iterator[str]:
        made = calls(sources.find(where).node)
        places = {
            name: [(call.lineno, call.col_offset) for call in made if _is_call_of(call, name)]
            for name in self.names
        }
        for name, found in places.items():
            if not found:
                yield f"does not call {name}"
        for first, second in pairwise(self.names):
            if places[first] and places[second] and max(places[first]) > min(places[second]):
                yield f"calls {second} before {first}"


class Has(_Kind):
    """Pieces of a function's source, as `ast.unparse` spells them."""

    verb: ClassVar[str] = "relies on it"

    def __init__(self, *pieces: str) -> None:
        self.pieces = pieces

    def moved(self, sources: Sources, where: str) -> Iterator[str]:
        text = sources.find(where).text
        for piece in self.pieces:
            if piece not in text:
                yield f"has no {piece}"


class Keys(_Kind):
    """Keys of verl's composed configuration; ``values`` are defaults that we count on."""

    verb: ClassVar[str] = "reads it"

    def __init__(self, *names: str, values: Mapping[str, object] | None = None) -> None:
        self.names = names
        self.values = values or {}

    def moved(self, sources: Sources, where: str) -> Iterator[str]:  # noqa: ARG002  # a `Reliance`
        composed = sources.configuration()
        for name in (*self.names, *self.values):
            found = _value_of(composed, name)
            if found is _NO_KEY:
                yield f"has lost its key {name}"
            elif found != self.values.get(name, found):
                yield f"has {found!r} as {name}, where it had {self.values[name]!r}"


class PresetKeys(Keys):
    """The keys that one of our presets sets."""

    verb: ClassVar[str] = "sets it"


def parameters(found: Found) -> list[str]:
    """Names in order, of a class those of its constructor; ``self`` left out, stars kept."""
    node = _callable(found)
    arguments = node.args
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    if names[:1] in (["self"], ["cls"]):
        names = names[1:]
    if arguments.vararg:
        names.append(f"*{arguments.vararg.arg}")
    names.extend(argument.arg for argument in arguments.kwonlyargs)
    if arguments.kwarg:
        names.append(f"**{arguments.kwarg.arg}")
    return names


def required(found: Found) -> list[str]:
    """Parameters that have no default."""
    arguments = _callable(found).args
    by_place = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    by_place = by_place[: len(by_place) - len(arguments.defaults)]
    named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    needed = by_place + [argument.arg for argument, default in named if default is None]
    return [name for name in needed if name not in ("self", "cls")]


def changed(expected: tuple[str, ...], there: list[str]) -> Iterator[str]:
    """Phrases for parameters that came, went or moved; behind `ANY_MORE` anything may come."""
    if expected[-1:] == (ANY_MORE,):
        expected = expected[:-1]
        there = [name for name in there if name in expected]
    for name in expected:
        if name not in there:
            yield f"has lost its parameter {name}"
    for name in there:
        if name not in expected:
            yield f"has a new parameter {name}"
    if sorted(expected) == sorted(there) and list(expected) != there:
        yield f"has its parameters in another order, {', '.join(there)}"


@cache
def members(node: ast.AST) -> frozenset[str]:
    """What a class defines, and what its methods set on ``self``."""
    names = {name for statement in statements(node) for name in defined(statement)}
    stored = {one.attr for one in ast.walk(node) if is_of_self(one) and isinstance(one.ctx, ast.Store)}
    return frozenset(names | stored)


def is_of_self(node: ast.AST) -> TypeGuard[ast.Attribute]:
    """Is it an attribute of ``self``?"""
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"


def calls(node: ast.AST) -> list[ast.Call]:
    """All calls in a piece of source."""
    return [inner for inner in ast.walk(node) if isinstance(inner, ast.Call)]


def _is_call_of(call: ast.Call, name: str) -> bool:
    """Is that what is called: its name, the end of its name, or its name and first arguments?"""
    if "(" in name:
        return ast.unparse(call).startswith(name)
    called = ast.unparse(call.func)
    return called == name or called.endswith(f".{name}")


_NO_KEY = object()


def _value_of(composed: object, key: str) -> object:
    """The value of a dotted key in nested dictionaries, else `_NO_KEY`."""
    for name in key.split("."):
        composed = composed.get(name, _NO_KEY) if isinstance(composed, dict) else _NO_KEY
    return composed


def _callable(found: Found) -> ast.FunctionDef | ast.AsyncFunctionDef:
    node = found.node
    if isinstance(node, ast.ClassDef):
        node = next((s for s in statements(node) if isinstance(s, Function) and s.name == "__init__"), node)
    if not isinstance(node, Function):
        raise GoneError(f"a function {found.name} in {found.module}")
    return node
