"""Print the size of the house next to its limits; status 1 where a value is over its own.

Each commit that makes the house smaller lowers its numbers in the same commit: ``python tools/budget.py
--lower`` writes into this file what fell. Nobody raises one.

What the tests of the last run cost (``build/test-costs.json``) is printed next to what was kept of an earlier
one (``tools/test-costs.json``, a copy of such a file).
"""

import ast
import json
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

LIMITS = {
    "lines of the package": 17716,
    "modules": 127,
    "longest function": 45,
    "functions per 1,000 lines": 40,
    "public names per 1,000 lines": 33,
    "names in two or more modules": 7,
    "algorithms' names as strings": 0,
    "lines of tests": 25359,
    "lines of benchmarks": 1774,
    "tracked tree, MB": 9.3,
    "hand-written words in docs": 10871,
    "words of README": 596,
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


def print_costs(last: Path, kept: Path) -> bool:
    """Print the tests' CPU seconds by folder and rank; return whether a folder or a count of a rank grew.

    A folder grew whose seconds are a tenth over the kept ones, times the speed of this machine: the median of
    all folders' ratios. One of which fewer tests were run is not compared.
    """
    has_grown, ranks = False, json.loads(last.read_text()) if last.is_file() else {}
    for rank, limits in json.loads(kept.read_text()).items():
        folders = {name: each for name, each in ranks.get(rank, {}).items() if name in limits}
        whole = {name: each for name, each in folders.items() if each["tests"] >= limits[name]["tests"]}
        ratios = [
            each["seconds"] / limits[name]["seconds"] for name, each in whole.items() if each["seconds"] > 1
        ]
        speed = median(ratios or [1.0])
        for name, cost in whole.items():
            limit = limits[name]["seconds"] * speed
            is_over = cost["seconds"] > 1.1 * limit + 5
            has_grown |= is_over
            print(f"{'!' if is_over else ' '} {rank} {name}: {cost['seconds']:.0f} CPU s (kept {limit:.0f})")
        for count in ("processes", "trainings") if whole.keys() == limits.keys() else ():
            found, most = (sum(each[count] for each in of.values()) for of in (whole, limits))
            has_grown |= found > most
            print(f"{'!' if found > most else ' '} {rank}: {found} {count} (limit {most})")
    return has_grown


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
    root, name = file.parents[1], "test-costs.json"
    has_grown = print_costs(root / "build" / name, root / "tools" / name)
    return int(has_grown or any(measured[each].value > limit for each, limit in limits.items()))


if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve(), lower="--lower" in sys.argv[1:]))
