"""Fixtures shared by all tests; what they do to a process's global state is undone."""

import os
import subprocess
import sys
import textwrap

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
