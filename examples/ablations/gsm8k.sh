#!/usr/bin/env bash
# Run an ablation on GSM8K with a Qwen model, FSDP and vLLM.
#
#   bash examples/ablations/gsm8k.sh plan GRID [key=value …]     list the runs
#   bash examples/ablations/gsm8k.sh run GRID [key=value …]      start them, one after the other
#
#   GRID: losses, family, std, token_mean, clip, gvpo, gvpo_anchor, supervision, critic
#
# Data: python3 -m examples.data_preprocess.gsm8k in a checkout of verl writes ~/data/gsm8k.
# The grids are composed and checked by this package's tests; they have not been run, for lack of GPUs.
set -xeuo pipefail

export MODEL=${MODEL:-Qwen/Qwen2.5-1.5B-Instruct}
export DATA=${DATA:-$HOME/data/gsm8k}
export N_GPUS=${N_GPUS:-8}
export N_NODES=${N_NODES:-1}

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export REWARDS=$HERE/../rewards
COMMAND=${1:?"plan or run is missing. Type: bash examples/ablations/gsm8k.sh plan losses"}
GRID=${2:?"GRID is missing. Type: bash examples/ablations/gsm8k.sh plan losses"}

grpo-verl-ext ablate "$COMMAND" "$HERE/${GRID}_gsm8k.yaml" "${@:3}"
