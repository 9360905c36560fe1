"""Start Ray's workers as forks of one process, so that torch, verl and vLLM are imported only once."""

import shlex
import sys
from pathlib import Path

COMMAND = shlex.join([sys.executable, str(Path(__file__).parent)])
"""What Ray runs in the place of ``python``: its ``runtime_env.py_executable``."""
