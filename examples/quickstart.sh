#!/usr/bin/env bash
# Quick start on a machine without a GPU: install everything, prepare the embedded task chain_sum, train it
# with GVPO on verl's real trainer, and print the test accuracy before and after.
#
#   bash examples/quickstart.sh [options] [verl overrides]       --help lists the options
#
# Safe to repeat and to interrupt: run the same command again to resume from the last checkpoint. A finished
# run is moved aside, never overwritten. A folder with other files, or with a running quick start, is refused.
set -euo pipefail
exec bash "$(dirname "${BASH_SOURCE[0]}")/quickstart_common.sh" quickstart cpu "$@"
