#!/usr/bin/env bash
# Compare two rounds of iterative GRPO with one training of as many samples, where a reward model that judges whether the
# sum is right is the only reward, from the first step on. With no GPU, about an hour a seed on two cores:
#
#   bash examples/iterate_answers.sh 1 2 3 4        # seeds; safe to repeat and to interrupt
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[[ $# -gt 0 ]] || { echo "iterate_answers.sh: no seed given. Type: bash examples/iterate_answers.sh 1 2 3 4" >&2; exit 2; }
PATH=$PWD/.venv/bin:$PATH

for seed in "$@"; do
  grpo-verl-ext prepare chain_sum --seed "$seed"
  python examples/iterate_answers_prompts.py "$seed"
  grpo-verl-ext iterate run examples/iterate_answers_start.yaml "seed=$seed"
  grpo-verl-ext iterate run examples/iterate_answers.yaml "seed=$seed"
  grpo-verl-ext iterate run examples/iterate_answers.yaml "seed=$seed" \
    rounds=1 policy.steps=16 "folder=outputs/iterate_answers/one-seed-$seed"
done
python examples/iterate_answers_summary.py "$@"
