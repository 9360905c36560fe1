#!/usr/bin/env bash
# From a bare machine with no GPU to a model that learned: installs, prepares the embedded task chain_sum,
# trains it with GVPO on verl's real trainer, prints the test accuracy before and after.
#
#   bash examples/quickstart.sh [options] [verl overrides]       --help lists the options
#
# Safe to repeat and to interrupt: the same command goes on from the last checkpoint, and a finished run is
# moved aside, never overwritten.
set -euo pipefail
started=$(date +%s)
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bash examples/setup_cpu.sh
# Modules compiled once serve every process that the run starts.
unset PYTHONDONTWRITEBYTECODE
exec "${VENV:-.venv}/bin/python" examples/quickstart.py --started "$started" "$@"
