"""Test what README and docs say: links lead somewhere, code runs, commands parse, messages exist.

Not covered: that the site builds (`sphinx-build -W` in tests/run.sh), and the results of commands that train,
which are only parsed and composed.
"""

import contextlib
import functools
import importlib.util
import io
import itertools
import re
import runpy
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from markdown_pages import PAGES, ROOT, Block, anchors, blocks, commands, inline_code, links, name_of
from processes import Python
from verl.trainer.ppo import core_algos

from grpo_verl_ext import catalogue, preflight
from grpo_verl_ext.cli import app
from grpo_verl_ext.verl_plugin.compose import composed
from grpo_verl_ext.verl_plugin.config import Options

OF_THE_MACHINE = ("device", "rollout-engine", "queue", "task", "data", "model")
"""Checks that look at files and devices, which a command in a page does not have."""


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target, anchor in links(page):
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), target
        if anchor:
            assert anchor in anchors(file), f"{target}#{anchor}"


# Code


@pytest.fixture
def registries() -> Iterator[None]:
    kept = [
        (registry, dict(registry))
        for registry in (core_algos.ADV_ESTIMATOR_REGISTRY, core_algos.POLICY_LOSS_REGISTRY, catalogue.LOSSES)
    ]
    yield
    for registry, before in kept:
        registry.clear()
        registry.update(before)


SEED_OF_A_PROCESS = 67280421310721
"""torch's, where nothing has been drawn yet; verl's ``clip_cov`` draws, and earlier tests have drawn."""


def with_what_it_prints(page: Path) -> list[tuple[Block, str]]:
    """Python of a page, each block with the text block that follows it."""
    pairs = itertools.pairwise([*blocks(page), Block("", "", "", "")])
    return [
        (block, following.text if following.language == "text" else "")
        for block, following in pairs
        if block.language == "python" and not block.marker.startswith("not run: ")
    ]


@pytest.mark.parametrize("page", [page for page in PAGES if with_what_it_prints(page)], ids=name_of)
@pytest.mark.usefixtures("registries")
def test_code_runs_and_prints_what_the_page_says(page: Path) -> None:
    names: dict[str, object] = {}
    with torch.random.fork_rng():
        torch.manual_seed(SEED_OF_A_PROCESS)
        for block, expected in with_what_it_prints(page):
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(block.text, block.page, "exec"), names)
            assert printed.getvalue() == expected


def test_a_loss_of_ones_own_is_known_in_every_process_that_imports_verl(
    tmp_path: Path, python: Python
) -> None:
    _, (loss, _), *_ = with_what_it_prints(ROOT / "docs/own_loss.md")
    (tmp_path / "my_losses.py").write_text(loss.text)
    found = python(
        f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        import verl
        from verl.trainer.ppo.core_algos import get_policy_loss_fn
        print(get_policy_loss_fn('root_length').__module__)
        """,
        VERL_USE_EXTERNAL_MODULES="my_losses",
    )
    assert found.stdout.strip() == "my_losses", found.stderr


# Commands


@pytest.mark.parametrize("page", PAGES, ids=name_of)
@pytest.mark.usefixtures("registries")
def test_every_command_is_one(page: Path) -> None:
    for command in commands(page):
        if "VERL_USE_EXTERNAL_MODULES=" in command:  # which registers the reader's loss
            for name in re.findall(r"policy_loss\.loss_mode=(\w+)", command):
                core_algos.POLICY_LOSS_REGISTRY.setdefault(name, examine)
        examine(command)
    for code in inline_code(page):
        words = words_of(code)
        if len(words) > 1 and words[0] in PROGRAMS:
            with contextlib.suppress(typer.BadParameter):  # a command may be named without its arguments
                examine(code)


def test_the_short_form_that_trains_ppo_without_the_plugin_is_only_explained() -> None:
    files = (*PAGES, *(ROOT / "examples").rglob("*.sh"), *(ROOT / "examples").rglob("*.md"))
    short = {file.stem for file in files if "+algo=" in file.read_text()}
    assert short == {"api", "conformance", "troubleshooting"}


def examine(command: str) -> None:
    """Fails, by any exception, for what the program would refuse."""
    program, *arguments = words_of(command)
    if program in PROGRAMS:
        PROGRAMS[program](arguments)
    else:
        assert all(
            re.match(r"[+~]*[a-z][\w.]*(=|$)", word) and "." in word for word in (program, *arguments)
        ), command
        composed(["+algo=grpo", *(f"++{word.lstrip('+')}" for word in (program, *arguments))])


def words_of(command: str) -> list[str]:
    """Words of a command, its environment left out and something in the place of what the reader fills in."""
    command = re.sub(r"\bNAME\b", "grpo", re.sub(r"<[^<>]+>", "something", command))
    words = [re.sub(r"^N$", "1", re.sub(r"^X$", "grpo", word)) for word in shlex.split(command)]
    words = [word.replace("=…", "=something") for word in words if word != "…"]
    while words and re.match(r"[A-Z]\w*=", words[0]):
        words.pop(0)
    return words


OURS: dict[str, Any] = vars(typer.main.get_command(app))["commands"]


def examine_ours(arguments: list[str]) -> None:
    name, *rest = arguments
    if name.startswith("--"):
        assert name in {option for each in typer.main.get_command(app).params for option in each.opts}
        return
    context = OURS[name].make_context(name, list(rest))
    for path in (word for word in rest if word.startswith("examples/")):
        assert (ROOT / path).is_file(), path
    if name == "doctor":
        options = {f"config_{key}": context.params[key] for key in ("path", "name") if context.params[key]}
        examine_training(context.params["overrides"] or [], **options)


def examine_training(overrides: list[str], **options: str) -> None:
    """verl would take it, and this package would not refuse it for its settings."""
    config = composed([*overrides, "++actor_rollout_ref.rollout.name=vllm"], **options)
    if not any(word.startswith("actor_rollout_ref.rollout.n=") for word in overrides):
        config.actor_rollout_ref.rollout.n = 8
    for name, refuse in preflight.CHECKS.items():
        if name not in OF_THE_MACHINE:
            refuse(config)


def examine_python(arguments: list[str]) -> None:
    first, *rest = arguments
    if first == "-m" and rest[0] == "verl.trainer.main_ppo":
        examine_training(rest[1:])
    elif first == "-m":
        assert importlib.util.find_spec(rest[0]), rest[0]
    elif not first.startswith("my_"):
        assert (ROOT / first).is_file(), first
    if first in (f"examples/{name}.py" for name in quickstart_arguments()["EXAMPLES"]):
        examine_example(Path(first).stem, rest)


def examine_bash(arguments: list[str]) -> None:
    script, *rest = arguments
    assert script == "run.sh" or (ROOT / script).is_file(), script  # the reader's own
    if script in (f"examples/{name}.sh" for name in quickstart_arguments()["EXAMPLES"]):
        examine_example(Path(script).stem, rest)
    if script == "examples/setup_cpu.sh" and rest:
        assert set(rest[0].split(",")) <= extras(), rest[0]


def examine_example(name: str, arguments: list[str]) -> None:
    module = quickstart_arguments()
    example = module["EXAMPLES"][name]
    options, overrides = module["parse_arguments"](example, arguments)
    place = f"hydra.searchpath=[file://{ROOT}/examples/tasks]"
    examine_training([f"+algo={options.algo}", "+platform=cpu", place, f"+task={example.task}", *overrides])


@functools.cache
def quickstart_arguments() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "examples/quickstart_arguments.py"))


def examine_pip(arguments: list[str]) -> None:
    first, *requirements = arguments
    assert first in ("install", "uninstall")
    if "--constraint" in requirements:
        at = requirements.index("--constraint")
        _, file = requirements[at : at + 2]
        assert (ROOT / file).is_file(), file
        del requirements[at : at + 2]
    for requirement in requirements:
        named = re.fullmatch(r"(?:\.|grpo-verl-ext|git\+\$REPOSITORY_ADDRESS)(?:\[(.+)\])?", requirement)
        assert named, requirement
        assert not named[1] or set(named[1].split(",")) <= extras(), requirement


def extras() -> set[str]:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    return set(re.findall(r"^(\w+) = \[", project.split("optional-dependencies]")[1].split("\n[")[0], re.M))


PROGRAMS: dict[str, Callable[[list[str]], None]] = {
    "bash": examine_bash,
    "export": lambda words: None,
    "grpo-verl-ext": examine_ours,
    "pip": examine_pip,
    "python": examine_python,
    "python3": examine_python,
    **dict.fromkeys(("ray", "source"), lambda words: None),
    "sbatch": lambda words: examine_bash([word for word in words if not word.startswith("--")]),
}


# Presets

ALGORITHMS = sorted(page.stem for page in (ROOT / "docs/algorithms").glob("*.md"))


def test_the_pages_have_every_name_and_option() -> None:
    pages = [ROOT / "docs/settings.md", *(ROOT / "docs/algorithms").glob("*.md")]
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    options = [name for _, name in Options.all_keys("").values()]
    for name in (*catalogue.ESTIMATORS, *catalogue.LOSSES, *options):
        assert re.search(rf"[`.…]{name}[`.]", text), name


def test_the_presets_are_the_pages() -> None:
    presets = (ROOT / "grpo_verl_ext/config/algo").glob("*.yaml")
    assert sorted(preset.stem for preset in presets) == ALGORITHMS


def test_the_start_page_leads_to_every_page() -> None:
    start = ROOT / "docs/index.md"
    linked = {(start.parent / target).resolve() for target, _ in links(start)}
    pages = {page for page in PAGES if page.parent == start.parent and page != start}
    assert pages - linked == set()
