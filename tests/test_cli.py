"""``grpo-verl-ext`` without a command."""

from typer.testing import CliRunner

import grpo_verl_ext
from grpo_verl_ext.cli import app


def test_the_version() -> None:
    printed = CliRunner().invoke(app, ["--version"])
    assert (printed.exit_code, printed.stdout) == (0, f"{grpo_verl_ext.__version__}\n")


def test_the_help_says_so() -> None:
    assert "--version" in CliRunner().invoke(app, ["--help"]).stdout
