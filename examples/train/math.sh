#!/usr/bin/env bash
# Train Qwen2.5-Math-7B on MATH with any algorithm of this package but grpo_process: FSDP, vLLM.
# gdpo needs a reward function that reports several rewards: reward.custom_reward_function.path=<file>.
#
#   ALGO=dr_grpo bash examples/train/math.sh [key=value …]
#
# By arithmetic, not measured: parameters, gradients and Adam's state take 16 bytes per parameter, 122 GB in all,
# spread over the GPUs; ALGO=ppo needs twice that, for its critic. If that does not fit beside vLLM, set OFFLOAD=true.
# A checkpoint has 12 bytes per parameter, 91 GB; two are kept.
#
# Data: prepare_data.sh. Several nodes: several_nodes.sh. Settings and their sources: +task=math, +algo@_global_=….
# Run the same command again to resume from the last checkpoint in OUTPUTS.
#
# Tests compose this script's command with verl's configuration and validate it, for each ALGO, on 1 and 16 GPUs.
# The training was not run, for lack of GPUs.
set -xeuo pipefail

# a file of grpo_verl_ext/config/algo, but for grpo_process
ALGO=${ALGO:-grpo}
MODEL=${MODEL:-Qwen/Qwen2.5-Math-7B}
DATA=${DATA:-$HOME/data/math}
OUTPUTS=${OUTPUTS:-$PWD/outputs/train}
# or '["console","wandb"]'
LOGGER=${LOGGER:-'["console"]'}
# on each node
N_GPUS=${N_GPUS:-8}
N_NODES=${N_NODES:-1}
# true: parameters and Adam's state wait in the machine's memory while vLLM samples
OFFLOAD=${OFFLOAD:-false}

NAME=${MODEL##*/}-$ALGO

if [[ $ALGO == grpo_process ]]; then
  echo "math.sh: ALGO is grpo_process, but no reward function here has rewards for steps of MATH;" \
    "valid is any other. Type: ALGO=grpo bash $0" >&2
  exit 1
fi

# epochs and frequencies are those of verl's examples/grpo_trainer/run_qwen2-7b_math.sh
python3 -m verl.trainer.main_ppo \
  +task=math \
  +algo@_global_="$ALGO" \
  task.folder="$DATA" \
  task.model="$MODEL" \
  actor_rollout_ref.actor.fsdp_config.param_offload="$OFFLOAD" \
  actor_rollout_ref.actor.fsdp_config.optimizer_offload="$OFFLOAD" \
  critic.fsdp.param_offload="$OFFLOAD" \
  critic.fsdp.optimizer_offload="$OFFLOAD" \
  trainer.n_gpus_per_node="$N_GPUS" \
  trainer.nnodes="$N_NODES" \
  trainer.total_epochs=15 \
  trainer.test_freq=5 \
  trainer.save_freq=20 \
  trainer.max_actor_ckpt_to_keep=2 \
  trainer.max_critic_ckpt_to_keep=2 \
  trainer.project_name=math \
  trainer.experiment_name="$NAME" \
  trainer.default_local_dir="$OUTPUTS/math/$NAME" \
  trainer.logger="$LOGGER" \
  "$@"
