#!/usr/bin/env bash
# Iterative GRPO (arXiv 2402.03300, Algorithm 1) of Qwen2.5-1.5B-Instruct on GSM8K: one node with GPUs, FSDP, vLLM, the
# reward model on CPU in verl's reward processes.
#
#   bash examples/iterate_gsm8k.sh plan|run [key=value …]     e.g. run rounds=3 policy.steps=50
#
# The data are verl's: python3 -m examples.data_preprocess.gsm8k in a checkout of verl writes ~/data/gsm8k.
# The configuration is composed and checked by this package's tests; the training was not run, for want of GPUs.
set -xeuo pipefail

export MODEL=${MODEL:-Qwen/Qwen2.5-1.5B-Instruct}
export DATA=${DATA:-$HOME/data/gsm8k}
# for the policy; 256 prompts × 8 responses are shared evenly by 1, 2, 4 or 8
export N_GPUS=${N_GPUS:-4}
export N_NODES=${N_NODES:-1}

COMMAND=${1:?"plan or run is missing. Type: bash examples/iterate_gsm8k.sh plan"}

grpo-verl-ext iterate "$COMMAND" "$(dirname "${BASH_SOURCE[0]}")/iterate_gsm8k.yaml" "${@:2}"
