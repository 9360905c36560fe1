#!/usr/bin/env bash
# One expects: gc.freeze(), which Python's documentation advises before a fork and vLLM calls, changes nothing
# that a process prints. triton 3.9.0 (bindings by nanobind): a process that imported triton and froze ends with a
# report of leaked instances, types and functions, for Python's last collection no longer reaches the modules that
# hold them. Nothing leaks while it runs. It matters for whoever looks for a leak of a server or a trainer: this
# report is not one.
set -euo pipefail
# shellcheck source=findings/venv.bash
source "$(dirname "$0")/venv.bash" triton==3.9.0
"$place/venv/bin/python" - << 'PYTHON'
import subprocess
import sys

SEEN = {
    "import triton": [],
    "import gc, triton; gc.disable()": [],
    "import gc, triton; gc.freeze()": [f"nanobind: leaked {each}" for each in ("instances", "types", "functions")],
}
seen = {}
for program in SEEN:
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    reports = [line.split() for line in done.stderr.splitlines() if line.startswith("nanobind: leaked")]
    seen[program] = [f"nanobind: leaked {what.rstrip('!')}" for _, _, _, what in reports]
    print(program, *seen[program] or ["nothing"], sep="\n    ")
sys.exit(seen != SEEN)
PYTHON
