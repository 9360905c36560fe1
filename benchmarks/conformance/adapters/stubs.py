"""Modules that stand where a framework imports something that it needs for other work than its loss."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any


def stub(name: str, **known: Any) -> None:
    """Put a module that has only the attributes given in the place of one that cannot be imported here."""
    module = ModuleType(name)
    module.__spec__ = importlib.util.spec_from_loader(name, loader=None)
    vars(module).update(known)
    sys.modules[name] = module


def bare(*packages: str) -> None:
    """Let modules of packages be imported without running the packages' own ``__init__``."""
    for package in packages:
        parent, _, name = package.rpartition(".")
        above = importlib.import_module(parent).__path__ if parent else sys.path
        stub(package, __path__=[f"{folder}/{name}" for folder in above if Path(folder, name).is_dir()])
