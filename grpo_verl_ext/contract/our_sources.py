"""This package as syntax trees: verl's names in its imports, and its classes that derive from verl's."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from grpo_verl_ext.contract.reliances import is_of_self, members
from grpo_verl_ext.contract.verl_sources import OURS, THEIRS, Found, Function, Sources, statements

_PLUGIN = f"{OURS}.verl_plugin"


@dataclass(frozen=True)
class Module:
    """A module of ours, all nodes of its tree, and what its imports call the names of other modules."""

    name: str
    nodes: tuple[ast.AST, ...]
    imports: Mapping[str, str]

    @property
    def short(self) -> str:
        """Its name without the package's."""
        return short(self.name)

    def dotted(self, node: ast.AST) -> str | None:
        """The full name that an expression stands for, if an import has its beginning."""
        if isinstance(node, ast.Name):
            return self.imports.get(node.id)
        if isinstance(node, ast.Attribute):
            owner = self.dotted(node.value)
            return f"{owner}.{node.attr}" if owner else None
        return None

    def of_verl(self, node: ast.AST) -> str | None:
        """The same for a name of verl's, else None."""
        name = self.dotted(node)
        return name if name and is_verls(name) else None

    def calls(self) -> Iterator[tuple[str, ast.Call]]:
        """(name of verl's that is called, the call)."""
        for node in self.nodes:
            name = self.of_verl(node.func) if isinstance(node, ast.Call) else None
            if name and isinstance(node, ast.Call):
                yield name, node


def our_modules(sources: Sources) -> dict[str, Module]:
    """Each module of the package by its name, but for the contract's own, which quote verl."""
    package = sources.file(OURS)
    assert package is not None
    found = {}
    contracts = set(Path(__file__).parent.glob("*.py"))
    for file in sorted({*package.parent.rglob("*.py")} - contracts):
        parts = file.relative_to(package.parent.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        nodes = tuple(ast.walk(sources.tree(name)))
        found[name] = Module(name, nodes, dict(pair for node in nodes for pair in _imported(node)))
    return found


def _imported(node: ast.AST) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Import):
        yield from ((alias.asname or alias.name, alias.name) for alias in node.names)
    if isinstance(node, ast.ImportFrom) and node.level == 0:
        yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)


def short(module: str) -> str:
    """The name of a module of ours without the package's."""
    return module.removeprefix(f"{OURS}.")


def is_verls(name: str) -> bool:
    """Does it begin with one of verl's packages?"""
    return name.split(".", maxsplit=1)[0] in THEIRS


@dataclass(frozen=True)
class OurClass:
    """A class of ours on verl's."""

    lineage: tuple[Found, ...]
    """Itself, and the classes of ours above it."""
    bases: tuple[str, ...]
    """Classes of verl's that one of these derives from, by the names in our imports."""

    @property
    def node(self) -> ast.AST:
        """Its own statements."""
        return self.lineage[0].node

    @property
    def base(self) -> str:
        """The class of verl's that comes last."""
        return self.bases[-1]

    def methods(self) -> list[Found]:
        """Methods of all our classes."""
        return [method for owner in self.lineage for method in methods(owner)]

    def from_self(self) -> list[ast.Attribute]:
        """Where it takes from ``self`` what none of our classes defines."""
        own = {name for owner in self.lineage for name in members(owner.node)}
        return [node for node in ast.walk(self.node) if is_of_self(node) and node.attr not in own]

    def calls_of_self(self, sources: Sources) -> Iterator[tuple[str, ast.Call]]:
        """(method of verl's, the call)."""
        taken = {id(node): f"{self.base}.{node.attr}" for node in self.from_self()}
        for node in ast.walk(self.node):
            where = taken.get(id(node.func)) if isinstance(node, ast.Call) else None
            found = sources.look_up(where) if where else None
            if where and found and isinstance(node, ast.Call) and isinstance(found.node, Function):
                yield where, node

    def implemented(self, sources: Sources) -> list[Found]:
        """Its public methods, if its base is an abstract class of which it takes nothing but the names."""
        base = sources.look_up(self.base)
        functions = (node for node in statements(base.node) if isinstance(node, Function)) if base else ()
        decorators = [decorator for node in functions for decorator in node.decorator_list]
        is_abstract = any("abstract" in ast.unparse(decorator) for decorator in decorators)
        if not is_abstract or any(map(calls_super, self.methods())):
            return []
        return [method for method in methods(self.lineage[0]) if not method.name.startswith("_")]


def classes_on_verl(sources: Sources, ours: Mapping[str, Module]) -> list[OurClass]:
    """All that the package has."""
    found = [
        OurClass(*_lineage(sources, ours, Found(name, node)))
        for name in ours
        for node in statements(sources.tree(name))
        if isinstance(node, ast.ClassDef)
    ]
    return [one for one in found if one.bases]


def _bases(ours: Mapping[str, Module], found: Found) -> Iterator[str]:
    """The full names of a class's bases; those after a star are the features' parts in the trainer."""
    for base in getattr(found.node, "bases", []):
        if isinstance(base, ast.Starred):
            yield from _parts_in_the_trainer(ours)
        else:
            yield ours[found.module].dotted(base) or f"{found.module}.{ast.unparse(base)}"


def _parts_in_the_trainer(ours: Mapping[str, Module]) -> Iterator[str]:
    """What the features' records call ``trainer``, ``module:class`` in the plugin."""
    for module in ours.values():
        for node in module.nodes:
            if (
                isinstance(node, ast.keyword)
                and node.arg == "trainer"
                and isinstance(node.value, ast.Constant)
            ):
                yield f"{_PLUGIN}.{str(node.value.value).replace(':', '.')}"


def _lineage(
    sources: Sources, ours: Mapping[str, Module], found: Found
) -> tuple[tuple[Found, ...], tuple[str, ...]]:
    lineage: tuple[Found, ...] = (found,)
    bases: tuple[str, ...] = ()
    for name in _bases(ours, found):
        own = None if is_verls(name) else sources.look_up(name)
        if is_verls(name):
            bases = (*bases, name)
        elif own and own.module in ours:
            above, theirs = _lineage(sources, ours, own)
            lineage, bases = lineage + above, bases + theirs
    return lineage, tuple(dict.fromkeys(bases))


def overrides(sources: Sources, classes: list[OurClass]) -> Iterator[tuple[str, Found]]:
    """(method of verl's, ours in its place); one that calls ``super()`` is listed even if verl's is gone."""
    found: dict[tuple[str, ast.AST], Found] = {}
    for one in classes:
        for method in one.methods():
            owners = {owner for base in one.bases if (owner := _owner(sources, base, method.name))}
            if not owners and _relies_on_super(one, method):
                owners = {one.base}
            found.update({(f"{owner}.{method.name}", method.node): method for owner in sorted(owners)})
    yield from ((where, method) for (where, _), method in found.items())


def _owner(sources: Sources, base: str, method: str) -> str | None:
    """The class of verl's that has the method: this one by the name that we know, or one above it."""
    first = sources.look_up(base)
    for owner in sources.lineage(first) if first else ():
        if any(own.name == method for own in methods(owner)):
            return base if owner == first else f"{owner.module}.{owner.name}"
    return None


def _relies_on_super(one: OurClass, method: Found) -> bool:
    above = {other.name for owner in one.lineage[1:] for other in methods(owner)}
    return calls_super(method) and method in methods(one.lineage[0]) and method.name not in above


def calls_super(method: Found) -> bool:
    """Does it hand on to the method that it overrides?"""
    return f"super().{method.name}(" in method.text


def methods(found: Found) -> list[Found]:
    """Those that a class defines itself."""
    return [Found(found.module, node) for node in statements(found.node) if isinstance(node, Function)]
