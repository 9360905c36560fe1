"""Workers of Ray that do not import torch, verl and vLLM each for itself: forks of one process that did."""

import shlex
import sys
from pathlib import Path


def command() -> str:
    """What Ray is to run in the place of ``python``, its setting ``runtime_env.py_executable``."""
    return shlex.join([sys.executable, str(Path(__file__).parent)])
