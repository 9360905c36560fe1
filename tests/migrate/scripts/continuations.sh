#!/usr/bin/env bash
# python3 -m verl.trainer.main_ppo: a comment starts nothing
set -xeuo pipefail
MODEL=${1:-Qwen/Qwen3-0.6B}
kl=${KL:-0.001}
echo "this starts python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo"
python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=grpo \
    data.train_files=$HOME/data/train.parquet \
    data.train_batch_size=64 \
    actor_rollout_ref.model.path="$MODEL" \
    actor_rollout_ref.actor.kl_loss_coef=$kl \
    actor_rollout_ref.actor.use_kl_loss=True \
    actor_rollout_ref.actor.clip_ratio_high=${CLIP:-0.2} actor_rollout_ref.actor.clip_ratio_low=0.1 \
    trainer.logger='["console","wandb"]' \
    actor_rollout_ref.actor.clip_ratio_c=$(python3 -c 'print(3)') \
    "$@" 2>&1 | tee log.txt
