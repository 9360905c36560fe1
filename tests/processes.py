"""Types of the fixtures that start processes."""

import subprocess
from collections.abc import Callable

Python = Callable[..., subprocess.CompletedProcess[str]]
"""The fixture ``python``: code and environment variables → the finished process."""
