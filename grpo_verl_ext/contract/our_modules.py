"""The modules of this package as syntax trees, and the names of verl's that their imports give them."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from grpo_verl_ext.contract.verl_sources import OURS, THEIRS, Sources


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
