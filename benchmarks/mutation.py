"""Test the tests: change the mathematics in one place at a time and run its tests on each change.

python benchmarks/mutation.py [--module kl ...] [--list]

Works on a copy of the tree in a temporary folder. A mutant changes one operator, comparison, number, function
or argument of ``grpo_verl_ext/algorithms`` in the ways listed below. It is killed when a test fails, and
survives when all pass. `EQUIVALENT` names the mutants that no test can kill, each with its reason.

No library does this yet: mutmut 3.8.1 makes 11 of the 28 mutants of ``groups.py`` and takes no operators of
one's own; cosmic-ray 8.7.0 starts the tests afresh for each of 1,790 mutants: four hours, not 17 minutes.
"""

import ast
import copy
import importlib
import multiprocessing
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from common import parser

ROOT = Path(__file__).resolve().parents[1]
ALGORITHMS = Path("grpo_verl_ext/algorithms")
TESTS = ("tests/algorithms", "tests/plugin/losses/test_losses.py", "tests/plugin/test_estimators.py")
SKIPPED = "not two_real_ranks and not one_graph and not import_leaves"
"""Tests that start processes or a compiler: slow, and not about values."""

OPERATORS: dict[type[ast.AST], list[ast.AST]] = {ast.Add: [ast.Sub()], ast.Sub: [ast.Add()]}
OPERATORS |= {ast.Mult: [ast.Div()], ast.Div: [ast.Mult()], ast.BitAnd: [ast.BitOr()]}
OPERATORS |= {ast.Lt: [ast.Gt(), ast.LtE()], ast.Gt: [ast.Lt(), ast.GtE()]}
OPERATORS |= {ast.Eq: [ast.NotEq()], ast.Is: [ast.IsNot()]}
CALLS = {"minimum": "maximum", "maximum": "minimum", "exp": "expm1", "expm1": "exp", "sum": "mean"}
CALLS |= {"amax": "amin", "any": "all", "zeros_like": "ones_like", "new_zeros": "new_ones"}
CALLS |= {"square": "abs", "sqrt": "abs", "reciprocal": "abs", "clamp": "abs", "detach": "clone"}
"""Function → its replacement; the argument is kept."""

EQUIVALENT = {
    "surrogate.py clipped_surrogate: advantages < 0  →  advantages <= 0": (
        "at A = 0 the bound −cA is 0 and so is the loss, with no gradient either way"
    ),
    "ragged.py module: 2  →  3": "the size of a block changes no result",
    "ragged.py module: 18  →  19": "the size of a block changes no result",
    "kl.py token_means: True  →  False": "the columns were checked to be equally long",
}
"""Mutant, as printed → why it computes the same result."""


@dataclass(frozen=True)
class Mutant:
    """The source of a file with one changed expression, and a description of the change."""

    path: Path
    source: str
    change: str


def mutants(path: Path) -> Iterator[Mutant]:
    """Yield all mutants of a file, in the order of their place in it."""
    tree = ast.parse((ROOT / path).read_text())
    owner = {node: getattr(top, "name", "module") for top in tree.body for node in ast.walk(top)}
    for node in ast.walk(tree):
        for replacement in variants(node):
            changed = copy.deepcopy(tree, {id(node): replacement})  # as if the node had been copied already
            change = f"{path.name} {owner[node]}: {_words(node)}  →  {_words(replacement)}"
            yield Mutant(path, ast.unparse(ast.fix_missing_locations(changed)), change)


def variants(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the replacements of an expression."""
    match node:
        case ast.BinOp(op=op) if type(op) in OPERATORS:
            yield from (ast.BinOp(node.left, other, node.right) for other in OPERATORS[type(op)])
        case ast.Compare(ops=[op]) if type(op) in OPERATORS:
            yield from (ast.Compare(node.left, [other], node.comparators) for other in OPERATORS[type(op)])
        case ast.UnaryOp(op=ast.USub(), operand=operand) if not isinstance(operand, ast.Constant):
            yield operand  # dim=-1 and dim=1 are the same; the number below it becomes dim=-2
        case ast.Constant(value=bool()):
            yield ast.Constant(not node.value)
        case ast.Constant(value=int() | float()):
            yield ast.Constant(node.value + 1)
        case ast.Call():
            yield from _call_variants(node)


def _call_variants(node: ast.Call) -> Iterator[ast.expr]:
    match node.func:
        case ast.Attribute(attr="where"):  # drop a mask, or invert it
            condition, yes, no = node.args
            yield yes
            yield ast.Call(node.func, [condition, no, yes], [])
        case ast.Attribute(value=value, attr="clamp"):
            yield ast.Call(ast.Attribute(value, CALLS["clamp"]), [], [])
            yield value
        case ast.Attribute(value=value, attr=name) if name in CALLS:
            yield ast.Call(ast.Attribute(value, CALLS[name]), node.args, node.keywords)
            if name in ("exp", "sqrt", "square", "detach", "reciprocal"):
                yield value
        case ast.Name(id=("group_deviation" | "group_std" | "group_sum")):
            yield node.args[0]


def _words(node: ast.AST) -> str:
    return " ".join(ast.unparse(node).split())


def tests_pass(tree: Path) -> bool:
    """Whether the tests pass, run in a fork that has imported torch and verl but nothing of this package."""
    process = multiprocessing.get_context("fork").Process(target=_run_tests, args=(tree,))
    process.start()
    process.join()
    return process.exitcode == 0


def _run_tests(tree: Path) -> None:
    os.chdir(tree)
    sys.path.insert(0, str(tree))
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    for name in [name for name in sys.modules if name.partition(".")[0] == "grpo_verl_ext"]:
        del sys.modules[name]  # `common` has imported the tree that is not mutated
    plugin = importlib.import_module("grpo_verl_ext.plugin")  # what verl would have done on import
    assert str(plugin.__file__).startswith(str(tree)), plugin.__file__
    sys.exit(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-k", SKIPPED, *TESTS]))


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--module", nargs="*", help="names of modules; all by default")
    arguments.add_argument("--list", action="store_true", help="print the mutants and run nothing")
    options = arguments.parse_args()
    names = options.module or sorted(path.stem for path in (ROOT / ALGORITHMS).glob("*.py"))
    todo = [mutant for name in names for mutant in mutants(ALGORITHMS / f"{name}.py")]
    if options.list:
        print("\n".join(mutant.change for mutant in todo), f"\n{len(todo)} mutants")
        return
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        for part in ("grpo_verl_ext", "tests"):
            shutil.copytree(ROOT / part, tree / part, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", tree)
        os.environ["VERL_USE_EXTERNAL_PLUGINS"] = "none"  # they load in the fork
        sys.dont_write_bytecode = True
        for module in ("torch", "hypothesis", "verl.workers.utils.losses", "verl.trainer.ppo.ray_trainer"):
            importlib.import_module(module)
        report(tree, todo)


def report(tree: Path, todo: list[Mutant]) -> None:
    if not tests_pass(tree):
        sys.exit("the tests fail on the unchanged tree")
    counts = Counter[str]()
    for mutant in todo:
        if mutant.change in EQUIVALENT:
            verdict = "equivalent"
        else:
            (tree / mutant.path).write_text(mutant.source)
            verdict = "survived" if tests_pass(tree) else "killed"
            shutil.copy(ROOT / mutant.path, tree / mutant.path)
        counts[verdict] += 1
        print(f"{verdict:10s} {mutant.change}", flush=True)
    share = counts["killed"] / (counts["killed"] + counts["survived"])
    print(f"\n{dict(counts)}, {100 * share:.1f} % of the mutants that differ are killed")


if __name__ == "__main__":
    main()
