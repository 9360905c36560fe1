#!/usr/bin/env bash
# Train a real pretrained language model, SmolLM2-135M, on a machine without a GPU: install everything, convert the
# model, write the task's data, train with GVPO on verl's real trainer, and print the test accuracy before and after.
#
#   bash examples/smollm2.sh [options] [verl overrides]       --help lists the options
#
# Safe to repeat and to interrupt, as quickstart.sh.
set -euo pipefail
REQUIREMENTS=examples/tasks/requirements.txt exec bash "$(dirname "${BASH_SOURCE[0]}")/quickstart_common.sh" smollm2 cpu,ablation "$@"
