#!/usr/bin/env bash
# Run gsm8k.sh or math.sh as a job on a Ray cluster of several nodes.
#
#   ray start --head --dashboard-host=0.0.0.0     # on one node
#   ray start --address=HEAD:6379                 # on each other node
#   RAY_ADDRESS=http://HEAD:8265 N_NODES=2 ALGO=gvpo bash examples/train/several_nodes.sh math [key=value …]
#
# Each node needs verl and this package in the Python that started its Ray. All nodes must see this checkout, DATA,
# OUTPUTS and a model's folder under the same absolute paths. Set tokens, of the Hugging Face hub or of wandb, in the
# environment of `ray start`. Ctrl-C stops only the output; to stop the job: ray job stop ID.
#
# Tests submit it to a Ray of one node, with a python3 that only records its arguments. A training on several nodes
# was not run, for lack of GPUs.
set -xeuo pipefail

case ${1:-} in
  gsm8k | math) TASK=$1 ;;
  *)
    echo "several_nodes.sh: the task is '${1:-}'; valid are gsm8k, math. Type: bash $0 gsm8k" >&2
    exit 1
    ;;
esac
RAY_ADDRESS=${RAY_ADDRESS:?"is missing; valid is the cluster's dashboard. Type: RAY_ADDRESS=http://HEAD:8265 bash $0 $TASK"}
N_NODES=${N_NODES:-2}
OUTPUTS=${OUTPUTS:-$PWD/outputs/train}

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# a job does not inherit our environment
KNOBS=()
for name in ALGO MODEL DATA OUTPUTS LOGGER N_GPUS N_NODES OFFLOAD VERL_PLATFORM; do
  if [[ -n ${!name:-} ]]; then KNOBS+=("$name=${!name}"); fi
done

ray job submit --address "$RAY_ADDRESS" -- env "${KNOBS[@]}" bash "$HERE/$TASK.sh" "${@:2}"
