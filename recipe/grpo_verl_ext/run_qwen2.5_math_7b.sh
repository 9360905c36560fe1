#!/usr/bin/env bash
# Train Qwen2.5-Math-7B on MATH with the settings of GVPO's authors, and validate on the benchmarks of their Table 1.
#
#   bash recipe/grpo_verl_ext/run_qwen2.5_math_7b.sh [key=value …]                 GVPO, on 8 GPUs
#   ALGO=grpo bash recipe/grpo_verl_ext/run_qwen2.5_math_7b.sh [key=value …]       or dr_grpo
#
# Data: README.md. Run the same command again to resume from the last checkpoint in OUTPUTS.
#
# "Authors": gvpo/run_qwen2-7b_math_gvpo.sh of verl-recipe. Tests compose this command with verl's configuration and
# validate it for 8 GPUs. The training was not run, for lack of GPUs.
set -xeuo pipefail

# gvpo, grpo or dr_grpo
ALGO=${ALGO:-gvpo}
MODEL=${MODEL:-Qwen/Qwen2.5-Math-7B}
# train.parquet, benchmarks.parquet
DATA=${DATA:-$HOME/data/math}
OUTPUTS=${OUTPUTS:-$PWD/outputs/grpo_verl_ext}
# or '["console","wandb"]'
LOGGER=${LOGGER:-'["console"]'}
# on each node
N_GPUS=${N_GPUS:-8}
N_NODES=${N_NODES:-1}

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# authors: 1024 prompts × 4 in mini-batches of 256 prompts, lr 1e-6, 1024 tokens for prompt and response, 15 epochs;
# β 0.1 and no KL are those of +algo@_global_=gvpo. For avg@32 on AIME validation samples, at the temperature of training (ours).
SETTINGS=(
  data.val_files="$DATA/benchmarks.parquet"
  data.train_batch_size=1024
  data.max_prompt_length=1024
  data.max_response_length=1024
  actor_rollout_ref.actor.ppo_mini_batch_size=256
  actor_rollout_ref.actor.ppo_epochs=1
  actor_rollout_ref.actor.optim.lr=1e-6
  actor_rollout_ref.actor.entropy_coeff=0
  actor_rollout_ref.rollout.n=4
  actor_rollout_ref.rollout.val_kwargs.do_sample=true
  actor_rollout_ref.rollout.val_kwargs.temperature=1.0
  reward.custom_reward_function.path="$HERE/reward.py"
)

python3 -m verl.trainer.main_ppo \
  +task@_global_=math \
  +algo@_global_="$ALGO" \
  task.folder="$DATA" \
  task.model="$MODEL" \
  "${SETTINGS[@]}" \
  trainer.n_gpus_per_node="$N_GPUS" \
  trainer.nnodes="$N_NODES" \
  trainer.total_epochs=15 \
  trainer.test_freq=5 \
  trainer.save_freq=20 \
  trainer.max_actor_ckpt_to_keep=2 \
  trainer.project_name=grpo_verl_ext \
  trainer.experiment_name="${MODEL##*/}-$ALGO" \
  trainer.default_local_dir="$OUTPUTS/${MODEL##*/}-$ALGO" \
  trainer.logger="$LOGGER" \
  "$@"
