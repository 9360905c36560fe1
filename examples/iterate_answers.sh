#!/usr/bin/env bash
# Compare two rounds of iterative GRPO with one training of as many samples, where a reward model that judges whether the
# sum is right is the only reward, from the first step on. Without a GPU, two of these at once on two cores take an hour and
# a half a start, and twenty minutes for each further training from it:
#
#   bash examples/iterate_answers.sh 1 2 3 4        # seeds of starts, below 100; safe to repeat and to interrupt
#
# Environment: TRAININGS (1), how many times both are trained from a start and its first reward model: with its seed, and
# with 100, 200, … more.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[[ $# -gt 0 ]] || { echo "iterate_answers.sh: no seed given. Type: bash examples/iterate_answers.sh 1 2 3 4" >&2; exit 2; }
PATH=$PWD/.venv/bin:$PATH
TRAININGS=${TRAININGS:-1}

seeds=()
for START in "$@"; do
  export START
  grpo-verl-ext prepare chain_sum --seed "$START"
  python examples/iterate_answers_prompts.py "$START"
  grpo-verl-ext iterate run examples/iterate_answers_start.yaml "seed=$START"
  for ((more = 0; more < TRAININGS; more++)); do
    seed=$((START + 100 * more))
    seeds+=("$seed")
    grpo-verl-ext iterate run examples/iterate_answers.yaml "seed=$seed"
    grpo-verl-ext iterate run examples/iterate_answers.yaml "seed=$seed" \
      rounds=1 policy.steps=16 "folder=outputs/iterate_answers/one-seed-$seed"
  done
done
python examples/iterate_answers_summary.py "${seeds[@]}"
