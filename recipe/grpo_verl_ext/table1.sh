#!/usr/bin/env bash
# Compare GRPO, Dr. GRPO and GVPO on the benchmarks of GVPO's Table 1, three seeds each: nine trainings and a report.
#
#   bash recipe/grpo_verl_ext/table1.sh plan [key=value …]       list the runs
#   bash recipe/grpo_verl_ext/table1.sh run [key=value …]        start them, one after the other; again to go on
#   bash recipe/grpo_verl_ext/table1.sh report                   curves, differences with intervals, verdicts
#
# The grid table1.yaml is composed and checked by tests. It was not run, for lack of GPUs.
set -xeuo pipefail

export MODEL=${MODEL:-Qwen/Qwen2.5-Math-7B}
export DATA=${DATA:-$HOME/data/math}
export N_GPUS=${N_GPUS:-8}
export N_NODES=${N_NODES:-1}

RECIPE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export RECIPE

case ${1:-} in
  plan | run) grpo-verl-ext ablate "$1" "$RECIPE/table1.yaml" "${@:2}" ;;
  report) grpo-verl-ext ablate report "${2:-outputs/grpo_verl_ext/table1}" ;;
  *)
    echo "table1.sh: the command is '${1:-}'; valid are plan, run, report. Type: bash $0 plan" >&2
    exit 1
    ;;
esac
