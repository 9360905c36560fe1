#!/usr/bin/env bash
# Quick start on a machine without a GPU: install everything, prepare the embedded task chain_sum, train it
# with GVPO on verl's real trainer, and print the test accuracy before and after.
#
#   bash examples/quickstart.sh [options] [verl overrides]       --help lists the options
#
# Safe to repeat and to interrupt: run the same command again to resume from the last checkpoint. A finished
# run is moved aside, never overwritten. A folder with other files, or with a running quick start, is refused.
set -euo pipefail
started=$(date +%s)
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Wrong arguments are refused before anything is installed; an old Python is refused by setup_cpu.sh.
python=${PYTHON:-python3}
if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
  "$python" examples/quickstart_arguments.py "$@"
  for argument in "$@"; do
    if [[ $argument == -h || $argument == --help ]]; then exit; fi
  done
  "$python" examples/quickstart_stages.py
fi
bash examples/setup_cpu.sh
# Modules compiled once serve every process that the run starts.
unset PYTHONDONTWRITEBYTECODE
exec "${VENV:-.venv}/bin/python" examples/quickstart.py --started "$started" "$@"
