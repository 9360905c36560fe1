#!/usr/bin/env bash
# Run lint, format, types and layers, then the tests.
#
#   bash tests/run.sh                       what a change needs; of the trainings only GVPO on two ranks
#   bash tests/run.sh --ci                  what CI runs: also the site, other trainings, clusters and kills
#   bash tests/run.sh --long                all: also more trainings, kills, seeds and examples
#   bash tests/run.sh [pytest arguments]    only those tests; e.g. -m "not e2e": no training
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bash examples/setup_cpu.sh cpu,dev
VENV=${VENV:-.venv}
# shellcheck disable=SC1091 # setup_cpu.sh makes it
source "$VENV/bin/activate"
# All processes of the tests share compiled modules.
unset PYTHONDONTWRITEBYTECODE
# Processes share the cores; more threads per operator would slow them down.
export OMP_NUM_THREADS=1

if ! (($#)) || [[ $1 == --ci || $1 == --long ]]; then
  # The start of all trainings is made in the meantime.
  TRAININGS_CACHE=$(mktemp -d)
  export TRAININGS_CACHE
  trap 'rm -rf "$TRAININGS_CACHE"' EXIT
  GRPO_VERL_EXT_CACHE=$TRAININGS_CACHE grpo-verl-ext prepare chain_sum --seed 1 > /dev/null &
  start=$!
fi
pre-commit run --all-files --show-diff-on-failure &
lint=$!
if (($#)) && [[ -n ${start-} ]]; then
  sphinx-build -W --keep-going -q docs build/site
fi
wait "$lint"

parallel=(python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder --durations 20)
if [[ -z ${start-} ]]; then
  "${parallel[@]}" "$@"
else
  wait "$start"
  # More processes than the two cores of a small machine: some tests wait for Ray, or for a process that they ended.
  if (($#)); then
    [[ $1 != --long ]] || export FUZZ_TIMES=3
    "${parallel[@]}" -m "not e2e" --numprocesses 3 "$@"
    # Two trainings at a time, and nothing else: while one starts, it uses a single core.
    "${parallel[@]}" -m e2e "$@"
    # In a session of its own, for nothing else may know the package.
    "${parallel[@]}" "$@" examples/teacher/tests
  else
    # Its one training waits for much, beside which the other tests go on.
    "${parallel[@]}" --numprocesses 3
  fi
fi
