"""Look up names in verl's sources as syntax trees, without importing them.

So a verl whose requirements are not installed can be examined, and no patch of ours or of a test is mistaken
for verl.
"""

import ast
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

OURS = "grpo_verl_ext"
THEIRS = ("verl", "transfer_queue", "vllm")
PACKAGES = (OURS, *THEIRS)
"""What is looked into; a name that one of them imports from elsewhere is taken as it is."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


class GoneError(LookupError):
    """There is no such name."""


@dataclass(frozen=True)
class Found:
    """A module, class, function or assignment, and the module that it stands in."""

    module: str
    node: ast.AST

    @property
    def text(self) -> str:
        """Its source, in the one spelling that `ast.unparse` has for it."""
        return ast.unparse(self.node)

    @property
    def name(self) -> str:
        """Of a class or function."""
        return str(getattr(self.node, "name", ""))


class Sources:
    """The packages that Python would import here."""

    def __init__(self) -> None:
        self._trees: dict[str, ast.Module] = {}

    def find(self, dotted: str) -> Found:
        """What the name stands for, through re-exports and base classes.

        Raises:
            GoneError: nothing.
        """
        names = dotted.split(".")
        modules = [n for n in range(1, len(names) + 1) if self.file(".".join(names[:n]))]
        if not modules:
            raise GoneError(dotted)
        length = modules[-1]
        found = Found(module := ".".join(names[:length]), self.tree(module))
        for name in names[length:]:
            member = self._member(found, name)
            if member is None:
                raise GoneError(dotted)
            found = member
        return found

    def look_up(self, dotted: str) -> Found | None:
        """The same, or None."""
        try:
            return self.find(dotted)
        except GoneError:
            return None

    @staticmethod
    @cache
    def file(module: str) -> Path | None:
        """The file of a module, or None if it is none."""
        package, *rest = module.split(".")
        spec = importlib.util.find_spec(package) if package in PACKAGES else None
        if spec is None or spec.origin is None:
            return None
        path = Path(spec.origin).parent.joinpath(*rest)
        candidates = [path / "__init__.py"] + [path.with_suffix(".py")] * bool(rest)
        return next((file for file in candidates if file.is_file()), None)

    def tree(self, module: str) -> ast.Module:
        """The whole module."""
        if module not in self._trees:
            self._trees[module] = ast.parse(self._text(module))
        return self._trees[module]

    def _text(self, module: str) -> str:
        file = self.file(module)
        assert file is not None, f"there is no module {module}"
        return file.read_text(encoding="utf-8")

    def lineage(self, found: Found) -> Iterator[Found]:
        """A class and its base classes, as far as they stand in `PACKAGES`."""
        yield found
        for base in getattr(found.node, "bases", []):
            parent = self._in_module(found.module, ast.unparse(base))
            if parent is not None and isinstance(parent.node, ast.ClassDef):
                yield from self.lineage(parent)

    def configuration(self) -> dict[str, Any]:
        """``ppo_trainer`` of verl, composed from its own folder; interpolations as they are written.

        Raises:
            GoneError: verl has no such folder, or Hydra cannot compose it.
        """
        package = self.file("verl")
        assert package is not None
        return _composed(package.parent / "trainer" / "config")

    def _member(self, found: Found, name: str) -> Found | None:
        if isinstance(found.node, ast.Module):
            return self._in_module(found.module, name)
        for owner in self.lineage(found):
            for statement in statements(owner.node):
                if name in defined(statement):
                    return Found(owner.module, statement)
        return None

    def _in_module(self, module: str, name: str) -> Found | None:
        for statement in statements(self.tree(module)):
            if name in defined(statement):
                return Found(module, statement)
            if isinstance(statement, ast.ImportFrom):
                imported = self._imported(module, statement, name)
                if imported is not None:
                    return imported
        submodule = f"{module}.{name}"
        return Found(submodule, self.tree(submodule)) if self.file(submodule) else None

    def _imported(self, module: str, statement: ast.ImportFrom, name: str) -> Found | None:
        source = self.absolute(module, statement)
        for alias in statement.names:
            if alias.name == "*" and self.file(source):
                found = self._in_module(source, name)
                if found is not None:
                    return found
            elif (alias.asname or alias.name) == name:
                return self._in_module(source, alias.name) if self.file(source) else Found(module, statement)
        return None

    def absolute(self, module: str, statement: ast.ImportFrom) -> str:
        """The module that ``from … import`` names."""
        if statement.level == 0:
            return str(statement.module)
        file = self.file(module)
        package = module.split(".")[: None if file and file.name == "__init__.py" else -1]
        above = package[: len(package) - (statement.level - 1)]
        return ".".join([*above, *([statement.module] if statement.module else [])])


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Of a module or class, those under ``if`` and ``try`` included."""
    for statement in getattr(node, "body", []):
        yield statement
        if isinstance(statement, ast.If | ast.Try):
            yield from statements(statement)


def defined(statement: ast.stmt) -> set[str]:
    """Names that a statement defines itself, not by an import."""
    if isinstance(statement, Function | ast.ClassDef):
        return {statement.name}
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    return {target.id for target in targets if isinstance(target, ast.Name)}


@cache
def _composed(folder: Path) -> dict[str, Any]:
    try:
        with initialize_config_dir(str(folder), version_base=None):
            composed = OmegaConf.to_container(compose("ppo_trainer"), resolve=False)
    except (HydraException, OmegaConfBaseException) as error:
        raise GoneError(f"the configuration in {folder} ({error})") from error
    assert isinstance(composed, dict)
    return {str(section): content for section, content in composed.items()}
