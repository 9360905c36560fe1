#!/usr/bin/env bash
# An ablation on GSM8K with a Qwen model, FSDP and vLLM.
#
#   bash examples/ablations/gsm8k.sh GRID [--run] [key=value …]     GRID: losses, std, token_mean, clip, gvpo,
#                                                                   gvpo_anchor, supervision, critic
#
# The data are verl's: python3 -m examples.data_preprocess.gsm8k in a checkout of verl writes ~/data/gsm8k.
# The grids are composed and checked by this package's tests; they were not run, for want of GPUs.
set -xeuo pipefail

export MODEL=${MODEL:-Qwen/Qwen2.5-1.5B-Instruct}
export DATA=${DATA:-$HOME/data/gsm8k}
export N_GPUS=${N_GPUS:-8}
export N_NODES=${N_NODES:-1}

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export REWARDS=$HERE/../rewards
GRID=${1:?"GRID is missing. Type: bash examples/ablations/gsm8k.sh losses"}

grpo-verl-ext ablate "$HERE/${GRID}_gsm8k.yaml" "${@:2}"
