"""Import a file that is no part of a package, such as an example."""

import importlib.util
from pathlib import Path
from types import ModuleType


def load_module(file: Path) -> ModuleType:
    """Return a new module of the file."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
