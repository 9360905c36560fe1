#!/usr/bin/env bash
# Check an installation on one GPU: train the embedded task, which needs no download, for 16 steps.
#
#   ALGO=dapo bash examples/train/chain_sum.sh [key=value …]
#
# The command below was run with gvpo on one H200 (docs/gpus.md): typed out, with prepared data, a second logger and no dashboard
# of Ray. Another ALGO was not run on a GPU. Tests compose each and validate it.
set -xeuo pipefail

# a file of grpo_verl_ext/config/algo
ALGO=${ALGO:-grpo}
OUTPUTS=${OUTPUTS:-$PWD/outputs/train}

python3 -m grpo_verl_ext prepare chain_sum --seed 1

# a tiny model needs neither flash-attn nor compiling, and little of the GPU
python3 -m verl.trainer.main_ppo \
  +task=chain_sum \
  +algo@_global_="$ALGO" \
  actor_rollout_ref.model.use_remove_padding=false \
  +actor_rollout_ref.model.override_config.attn_implementation=sdpa \
  actor_rollout_ref.model.enable_gradient_checkpointing=false \
  actor_rollout_ref.actor.strategy=fsdp2 \
  actor_rollout_ref.actor.use_torch_compile=false \
  actor_rollout_ref.ref.strategy=fsdp2 \
  actor_rollout_ref.ref.use_torch_compile=false \
  actor_rollout_ref.rollout.name=vllm \
  actor_rollout_ref.rollout.tensor_model_parallel_size=1 \
  actor_rollout_ref.rollout.max_model_len=256 \
  actor_rollout_ref.rollout.gpu_memory_utilization=0.2 \
  actor_rollout_ref.rollout.enforce_eager=true \
  actor_rollout_ref.rollout.calculate_log_probs=true \
  actor_rollout_ref.rollout.agent.num_workers=1 \
  reward.num_workers=1 \
  data.dataloader_num_workers=0 \
  trainer.n_gpus_per_node=1 \
  trainer.nnodes=1 \
  trainer.total_training_steps=16 \
  trainer.test_freq=16 \
  trainer.save_freq=-1 \
  trainer.logger='["console"]' \
  trainer.default_local_dir="$OUTPUTS/chain_sum/$ALGO" \
  "$@"
