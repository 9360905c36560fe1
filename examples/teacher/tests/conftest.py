"""Make the example known to this process and to those that it starts, as ``pip install`` would; fixtures."""

import os
import sys
import tempfile
from pathlib import Path

import pytest
import tomllib
from scripts import files, notes, run, started  # noqa: F401

EXAMPLE = Path(__file__).parents[1]


def _write_entry_points(folder: Path) -> None:
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    metadata = folder / "gvpo_teacher-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Name: {project['name']}\nVersion: 1\n")
    lines = []
    for group, entries in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines))


_FOLDER = tempfile.TemporaryDirectory()
_write_entry_points(Path(_FOLDER.name))
sys.path[:0] = [_FOLDER.name, str(EXAMPLE)]
os.environ["PYTHONPATH"] = os.pathsep.join([*sys.path[:2], os.environ.get("PYTHONPATH", "")])


@pytest.fixture(scope="session")
def tiny():
    """The embedded task with a model that is barely trained."""
    from grpo_verl_ext.tasks.chain_sum.prepared import TaskSettings

    sizes = {"width": 32, "layers": 1, "heads": 1, "feed_forward": 32, "batch_size": 4, "workers": 2}
    return TaskSettings(max_terms=4, train_problems=30, test_problems=9, steps=3, slip_steps=1, **sizes)
