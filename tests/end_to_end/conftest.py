"""Fixture: the embedded task, for trainings."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def chain_sum(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """In the cache folder TRAININGS_CACHE, or made once in one that the processes of a session share."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONFAULTHANDLER", "1")  # a process that crashes writes where it was
        patch.setenv("GRPO_VERL_EXT_CACHE", os.environ.get("TRAININGS_CACHE", str(shared / "cache")))
        command = [Path(sys.executable).with_name("grpo-verl-ext"), "prepare", "chain_sum", "--seed", "1"]
        subprocess.run(command, check=True, timeout=600)
        yield
