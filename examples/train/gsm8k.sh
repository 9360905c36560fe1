#!/usr/bin/env bash
# Train Qwen2.5-0.5B-Instruct, or 1.5B, on GSM8K with any algorithm of this package: FSDP, vLLM.
# gdpo needs a reward function that reports several rewards: reward.custom_reward_function.path=<file>.
#
#   ALGO=dapo bash examples/train/gsm8k.sh [key=value …]
#   ALGO=gvpo MODEL=Qwen/Qwen2.5-1.5B-Instruct N_GPUS=4 bash examples/train/gsm8k.sh
#
# Data: prepare_data.sh. Several nodes: several_nodes.sh. Settings and their sources: +task=gsm8k, +algo@_global_=….
# Run the same command again to resume from the last checkpoint in OUTPUTS.
#
# Tests compose this script's command with verl's configuration and validate it, for each ALGO, on 1 and 16 GPUs.
# The training was not run, for lack of GPUs.
set -xeuo pipefail

# a file of grpo_verl_ext/config/algo
ALGO=${ALGO:-grpo}
MODEL=${MODEL:-Qwen/Qwen2.5-0.5B-Instruct}
DATA=${DATA:-$HOME/data/gsm8k}
OUTPUTS=${OUTPUTS:-$PWD/outputs/train}
# or '["console","wandb"]'
LOGGER=${LOGGER:-'["console"]'}
# on each node
N_GPUS=${N_GPUS:-8}
N_NODES=${N_NODES:-1}

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
NAME=${MODEL##*/}-$ALGO

REWARD=()
if [[ $ALGO == grpo_process ]]; then
  # each written equation is a step
  REWARD=(reward.custom_reward_function.path="$HERE/../rewards/gsm8k_steps.py")
fi

# epochs and frequencies are those of verl's examples/grpo_trainer/run_qwen2-7b_seq_balance.sh
python3 -m verl.trainer.main_ppo \
  +task=gsm8k \
  +algo@_global_="$ALGO" \
  task.folder="$DATA" \
  task.model="$MODEL" \
  "${REWARD[@]}" \
  trainer.n_gpus_per_node="$N_GPUS" \
  trainer.nnodes="$N_NODES" \
  trainer.total_epochs=15 \
  trainer.test_freq=5 \
  trainer.save_freq=20 \
  trainer.project_name=gsm8k \
  trainer.experiment_name="$NAME" \
  trainer.default_local_dir="$OUTPUTS/gsm8k/$NAME" \
  trainer.logger="$LOGGER" \
  "$@"
