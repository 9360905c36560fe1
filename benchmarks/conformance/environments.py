"""Make one environment per framework: its pinned packages in front of a base with torch and verl."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

from benchmarks.conformance.frameworks import BASE, FRAMEWORKS
from grpo_verl_ext.utils.console import ending

ROOT = Path(__file__).parents[2]


class InstallationError(Exception):
    """pip could not install a framework."""


def python_of(adapter: str, folder: Path) -> Path:
    """Return the interpreter of a framework's environment, which is made or completed first.

    Raises:
        InstallationError: pip's last line.
    """
    base = _environment(folder / "base", ("-c", "constraints/cpu.txt", *BASE))
    packages = FRAMEWORKS[adapter].packages
    if not packages:
        return base
    python = _environment(folder / adapter, ("--no-deps", *packages))
    (_site_packages(python) / "base.pth").write_text(f"{_site_packages(base)}\n")
    return python


def _environment(folder: Path, arguments: tuple[str, ...]) -> Path:
    python = folder / "bin" / "python"
    done = folder / f"installed-{hashlib.sha256(' '.join(arguments).encode()).hexdigest()[:12]}"
    if not done.exists():
        print(f"conformance: making {folder}", file=sys.stderr)
        _run(sys.executable, "-m", "venv", "--clear", str(folder))
        _run(str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments)
        done.touch()
    return python


def _site_packages(python: Path) -> Path:
    return (
        python.parents[1]
        / "lib"
        / f"python{sys.version_info.major}.{sys.version_info.minor}"
        / "site-packages"
    )


def _run(*command: str) -> None:
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if finished.returncode:
        last = (finished.stderr.strip().splitlines() or [ending(finished.returncode)])[-1]
        raise InstallationError(f"{' '.join(command)} failed: {last}")
