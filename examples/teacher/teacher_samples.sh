#!/usr/bin/env bash
# Sample responses from a teacher, with verl's generation server, as stored responses for distill.sh.
#
#   TEACHER=… bash examples/teacher/teacher_samples.sh [key=value …]
#   DATA=$HOME/data/math-teacher bash examples/teacher/distill.sh actor_rollout_ref.rollout.calculate_log_probs=false \
#       +algorithm.grpo_ext.stored_responses.share=0.5
#
# Every prompt of DATA's train.parquet gets SAMPLES responses, in SAMPLED's train.parquet; test.parquet is copied. A text
# that the budget has cut off counts as complete: verl's server does not tell. Choose BUDGET so that few are.
#
# Without a GPU, on a Ray that counts one and with the CPU platform:
#
#   VERL_PLATFORM=cpu ray start --head --num-gpus=1 && export RAY_ADDRESS=127.0.0.1:6379 VERL_PLATFORM=cpu
#   TEACHER=… DATA=… N_GPUS=1 TEACHER_GPUS=1 bash examples/teacher/teacher_samples.sh +platform=cpu
#
# That was run, with the embedded task, 32 prompts and two responses to each, in 132 seconds on 2 cores; with GPUs it was not run.
set -xeuo pipefail

TEACHER=${TEACHER:-deepseek-ai/DeepSeek-R1-Distill-Llama-8B}
DATA=${DATA:-$HOME/data/math}
SAMPLED=${SAMPLED:-$DATA-teacher}
# distill.sh's responses to a prompt times its share of stored ones
SAMPLES=${SAMPLES:-2}
# tokens
BUDGET=${BUDGET:-3000}
N_GPUS=${N_GPUS:-8}
# GPUs of one server
TEACHER_GPUS=${TEACHER_GPUS:-2}

mkdir -p "$SAMPLED"
python3 -m verl.trainer.main_generation_server \
  data.train_files="$DATA/train.parquet" \
  +data.output_path="$SAMPLED/generated.parquet" \
  actor_rollout_ref.model.path="$TEACHER" \
  actor_rollout_ref.rollout.name=vllm \
  actor_rollout_ref.rollout.load_format=auto \
  actor_rollout_ref.rollout.n="$SAMPLES" \
  actor_rollout_ref.rollout.temperature=1 \
  actor_rollout_ref.rollout.top_p=1 \
  actor_rollout_ref.rollout.response_length="$BUDGET" \
  actor_rollout_ref.rollout.tensor_model_parallel_size="$TEACHER_GPUS" \
  trainer.n_gpus_per_node="$N_GPUS" \
  trainer.nnodes=1 \
  "$@"
python3 "$(dirname "${BASH_SOURCE[0]}")/generated_to_stored.py" "$SAMPLED/generated.parquet" "$SAMPLED/train.parquet"
cp "$DATA/test.parquet" "$SAMPLED"
