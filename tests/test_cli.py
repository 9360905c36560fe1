"""Test the command line: version, commands, and the answers to old ones."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from processes import Python
from typer.testing import CliRunner

import grpo_verl_ext
from grpo_verl_ext.cli import app
from grpo_verl_ext.runs.provenance import git_revision


def test_the_version_of_a_checkout_has_its_commit() -> None:
    printed = CliRunner().invoke(app, ["--version"])
    commit = str(git_revision())[:12]
    assert re.fullmatch(rf"{grpo_verl_ext.__version__}\.dev0\+{commit}(\.changes)?\n", printed.stdout)


def test_help_is_printed_without_importing_torch(interpreter: Python) -> None:
    finished = interpreter(
        """
        import sys
        from grpo_verl_ext.cli import app
        for words in (["--help"], ["doctor", "--help"], ["prepare", "--help"]):
            app(words, standalone_mode=False)
        print(sorted({"torch", "numpy", "verl", "ray", "hydra", "transformers"} & set(sys.modules)))
        """
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.splitlines()[-1] == "[]"


PREPARED = ("chain_sum", "chain_sum_mixed", "chain_sum_verbose")


def test_the_commands() -> None:
    commands = "ablate, ablate plan, ablate report, ablate run, doctor, invariance, iterate, iterate plan"
    assert sorted(paths_of(typer.main.get_command(app))) == [
        *(*commands.split(", "), "iterate run", "prepare"),
        *(*(f"prepare {name}" for name in PREPARED), "show", "train"),
    ]


@pytest.mark.parametrize(
    "words",
    [
        ["ablate", "plan", "examples/ablations/clip_chain_sum.yaml"],
        ["iterate", "plan", "examples/iterate_chain_sum.yaml"],
    ],
    ids=" ".join,
)
def test_a_file_as_folder_is_refused_before_verl_is_imported(
    words: list[str], tmp_path: Path, interpreter: Python
) -> None:
    (file := tmp_path / "file").touch()
    started = [*words[:2], str(Path(__file__).parents[1] / words[2]), f"folder={file}/new"]
    ended = interpreter(
        f"""
        import sys
        sys.modules |= {{"verl": None, "pandas": None}}
        from grpo_verl_ext.cli import app
        app({started})
        """
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith(f"{words[0]}: {file}/new: Not a directory; valid is a place that ")
    assert ended.stderr.endswith("Type: folder=<another>\n")


@pytest.mark.parametrize("command", ["invariance", "show gvpo", "train gvpo"])
def test_without_verl_a_line_says_what_to_type(command: str, interpreter: Python) -> None:
    ended = interpreter(
        f"""
        from importlib.machinery import PathFinder as P
        P.find_spec = lambda name, *of, find=P.find_spec: None if name == "verl" else find(name, *of)
        from grpo_verl_ext.cli import app
        app({command.split()})
        """
    )
    assert re.fullmatch(rf"{command.partition(' ')[0]}: verl is not installed. Type: pip .*\n", ended.stderr)


@pytest.mark.parametrize("seed", [2**70, -(2**70)])
def test_a_seed_that_torch_cannot_take_is_one_sentence(seed: int) -> None:
    refused = CliRunner().invoke(app, ["invariance", f"--seed={seed}"], env={"COLUMNS": "300"})
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "Invalid value for '--seed'" in refused.stderr


def paths_of(command: Any, before: str = "") -> Iterator[str]:
    for name, each in getattr(command, "commands", {}).items():
        yield from (f"{before}{name}", *paths_of(each, f"{before}{name} "))
