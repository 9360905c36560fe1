"""Start Ray's workers as forks of one process, so that torch, verl and vLLM are imported only once."""

import shlex
import sys
from pathlib import Path


def command() -> str:
    """Return the command that Ray runs in the place of ``python``: its ``runtime_env.py_executable``."""
    return shlex.join([sys.executable, str(Path(__file__).parent)])
