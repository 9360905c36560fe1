"""Measure what the plugin adds to `import verl`: CPU seconds of a fresh process, with and without it.

python benchmarks/import_cost.py [--repeat 7]
"""

import os
import resource
import subprocess
import sys
from statistics import median

from common import parser


def import_seconds(policy: str) -> float:
    """Return user plus system time of one `python -c "import verl"`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "VERL_USE_EXTERNAL_PLUGINS": policy}
    subprocess.run([sys.executable, "-c", "import verl"], check=True, env=environment, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime)


def main() -> None:
    repeat = parser(__doc__, repeat=7).parse_args().repeat
    import_seconds("auto")  # compiles modules that are not compiled yet
    # Alternating, so that a slow phase of the machine affects both.
    pairs = [(import_seconds("none"), import_seconds("grpo_verl_ext")) for _ in range(repeat)]
    without, with_plugin = (median(column) for column in zip(*pairs, strict=True))
    print(f"import verl, median of {repeat}: {without:.2f} s without, {with_plugin:.2f} s with the plugin;")
    print(f"median of the paired differences: {median(b - a for a, b in pairs):.2f} s")


if __name__ == "__main__":
    main()
