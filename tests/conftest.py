"""Fixtures shared by all tests; what they do to a process's global state is undone."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest
from processes import Python


@pytest.fixture
def python() -> Python:
    """Run a piece of Python in a fresh process, with extra environment variables; never raises on failure."""

    def run(code: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            capture_output=True,
            text=True,
            timeout=180,
            env={**os.environ, **env},
            check=False,
        )

    return run


@pytest.fixture
def verl_registries() -> Iterator[tuple[dict[str, object], dict[str, object]]]:
    """verl's two registries, restored afterwards."""
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY

    before = dict(ADV_ESTIMATOR_REGISTRY), dict(POLICY_LOSS_REGISTRY)
    yield ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY
    for registry, saved in zip((ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY), before, strict=True):
        registry.clear()
        registry.update(saved)
