#!/usr/bin/env bash
# From a bare machine with no GPU to a model that learned: installs, prepares the embedded task chain_sum,
# trains it with GVPO on verl's real trainer, prints the test accuracy before and after.
#
#   bash examples/quickstart.sh [options] [verl overrides]       --help lists the options
#
# Safe to repeat and to interrupt: the same command goes on from the last checkpoint, and a finished run is
# moved aside, never overwritten. A folder with other files in it, or with a running quick start, is refused.
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
