#!/usr/bin/env bash
# Distil a teacher with another tokenizer into Qwen2.5-Math-1.5B on MATH's prompts: GVPO, FSDP, vLLM.
#
#   bash examples/teacher/distill.sh [key=value …]
#
# The teacher has GPUs of its own, TEACHER_GPUS of each node beside the N_GPUS that train and sample; a server takes two.
# For a teacher with the student's tokenizer set READS=tokens.
#
# Data: examples/train/prepare_data.sh math. Once: pip install -e examples/teacher. Settings and their sources: +task=math, +algo@_global_=gvpo_distill. Samples, epochs and α are those
# that notes on GVPO++ (arXiv 2609.21432) report: 256 prompts × 4 responses, two epochs.
# Run the same command again to resume from the last checkpoint in OUTPUTS.
#
# Tests compose this script's command with verl's configuration and validate it on 1, 2 and 4 GPUs.
# The training was not run, for lack of GPUs.
set -xeuo pipefail

MODEL=${MODEL:-Qwen/Qwen2.5-Math-1.5B}
TEACHER=${TEACHER:-deepseek-ai/DeepSeek-R1-Distill-Llama-8B}
# or tokens
READS=${READS:-text}
DATA=${DATA:-$HOME/data/math}
OUTPUTS=${OUTPUTS:-$PWD/outputs/train}
# or '["console","wandb"]'
LOGGER=${LOGGER:-'["console"]'}
N_GPUS=${N_GPUS:-4}
TEACHER_GPUS=${TEACHER_GPUS:-4}

python3 -m verl.trainer.main_ppo \
  +task=math \
  +algo@_global_=gvpo_distill \
  task.folder="$DATA" \
  task.model="$MODEL" \
  ++algorithm.grpo_ext.teacher.reads="$READS" \
  distillation.teacher_models.teacher_model.model_path="$TEACHER" \
  distillation.n_gpus_per_node="$TEACHER_GPUS" \
  distillation.nnodes=1 \
  data.train_batch_size=256 \
  actor_rollout_ref.rollout.n=4 \
  actor_rollout_ref.actor.ppo_mini_batch_size=64 \
  trainer.n_gpus_per_node="$N_GPUS" \
  trainer.nnodes=1 \
  trainer.total_epochs=2 \
  trainer.test_freq=5 \
  trainer.save_freq=20 \
  trainer.max_actor_ckpt_to_keep=2 \
  trainer.project_name=math \
  trainer.experiment_name="${MODEL##*/}-distilled" \
  trainer.default_local_dir="$OUTPUTS/math/${MODEL##*/}-distilled" \
  trainer.logger="$LOGGER" \
  "$@"
