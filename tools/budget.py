"""Print the size of the house next to its limits; status 1 where a value is over its own.

Each commit that makes the house smaller lowers its numbers in the same commit: ``python tools/budget.py
--lower`` writes into this file what fell. Nobody raises one.
"""

import ast
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

LIMITS = {
    "lines of the package": 17865,
    "modules": 131,
    "longest function": 45,
    "functions per 1,000 lines": 40,
    "public names per 1,000 lines": 33,
    "names in two or more modules": 7,
    "algorithms' names as strings": 0,
    "lines of tests": 25782,
    "lines of benchmarks": 1776,
    "tracked tree, MB": 10.1,
    "hand-written words in docs": 10924,
    "words of README": 599,
}
WRITTEN_BY_PROGRAMS = ("conformance.md", "settings.md", "support.md")
NAMES_ALLOWED = ("catalogue", "config")
"""Folders of the package that may name an algorithm."""


class Measured(NamedTuple):
    """A value, and what to look at first where it is over its limit."""

    value: float
    where: str = ""


def measure(root: Path) -> dict[str, Measured]:
    """Return every value of `LIMITS` for the project in this folder."""
    package, pages = root / "grpo_verl_ext", (root / "docs").rglob("*.md")
    trees = {file.relative_to(root): ast.parse(file.read_text()) for file in sorted(package.rglob("*.py"))}
    nodes = [(file, node) for file, tree in trees.items() for node in ast.walk(tree)]
    lines = _lines(package)
    functions = [
        (node.end_lineno - node.lineno + 1, f"{file}: {node.name}")
        for file, node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno
    ]
    names = Counter(name for tree in trees.values() for name in {*_public_names(tree)})
    repeated = sorted(name for name, count in names.items() if count > 1)
    algorithms = {file.stem for file in (package / "config" / "algo").glob("*.yaml")}
    strings = [
        f"{file}:{node.lineno}"
        for file, node in nodes
        if isinstance(node, ast.Constant) and node.value in algorithms and file.parts[1] not in NAMES_ALLOWED
    ]
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, check=True, capture_output=True, text=True)
    tracked = [root / name for name in listed.stdout.split("\0") if (root / name).is_file()]
    values = (
        Measured(lines),
        Measured(sum(file.name != "__init__.py" for file in trees)),
        Measured(*max(functions)),
        Measured(round(1000 * len(functions) / lines)),
        Measured(round(1000 * names.total() / lines)),
        Measured(len(repeated), ", ".join(repeated)),
        Measured(len(strings), ", ".join(strings)),
        Measured(_lines(root / "tests")),
        Measured(_lines(root / "benchmarks")),
        Measured(math.ceil(sum(file.stat().st_size for file in tracked) / 1e5) / 10),
        Measured(sum(_words(page) for page in pages if page.name not in WRITTEN_BY_PROGRAMS)),
        Measured(_words(root / "README.md")),
    )
    return dict(zip(LIMITS, values, strict=True))


def _lines(folder: Path) -> int:
    return sum(len(file.read_text().splitlines()) for file in folder.rglob("*.py"))


def _words(page: Path) -> int:
    return len(page.read_text().split())


def _public_names(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names = [getattr(node, "name", "_"), *(each.id for each in targets if isinstance(each, ast.Name))]
        yield from (name for name in names if not name.startswith("_"))


def main(file: Path, *, lower: bool) -> int:
    """Print the values and return the status; with ``lower``, first lower the limits in this file."""
    measured, limits = measure(file.parents[1]), LIMITS
    if lower:
        limits = {name: min(limit, measured[name].value) for name, limit in LIMITS.items()}
        table = "".join(f'    "{name}": {limit},\n' for name, limit in limits.items())
        before, start, rest = file.read_text().partition("LIMITS = {\n")
        file.write_text(before + start + table + rest[rest.index("}\n") :])
    for name, (value, where) in measured.items():
        is_over = value > limits[name]
        print(f"{'!' if is_over else ' '} {name}: {value} (limit {limits[name]}) {where if is_over else ''}")
    return int(any(measured[name].value > limit for name, limit in limits.items()))


if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve(), lower="--lower" in sys.argv[1:]))
