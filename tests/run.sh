#!/usr/bin/env bash
# Lint, format, types, layers, the documentation site, the contract with verl 0.9.0, then tests.
#
#   bash tests/run.sh                       every test but the long ones; of the trainings GVPO on two ranks
#   bash tests/run.sh --all                 also the other trainings, clusters, kills, long fuzzing: what CI runs
#   bash tests/run.sh [pytest arguments]    those tests; e.g. -m "not e2e": no training
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bash examples/setup_cpu.sh cpu,dev
VENV=${VENV:-.venv}
export PATH="$PWD/$VENV/bin:$PATH"
# Modules compiled once serve every process that the tests start.
unset PYTHONDONTWRITEBYTECODE
# Two processes share the cores; threads of one operator would wait for each other.
export OMP_NUM_THREADS=1

pre-commit run --all-files --show-diff-on-failure &
lint=$!
sphinx-build -W --keep-going -q docs build/site
wait "$lint"

parallel=(python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder --durations 20)
if (($#)) && [[ $1 != --all ]]; then
  "${parallel[@]}" "$@"
else
  bash tests/contract/against.sh 0.9.0
  if (($#)); then export FUZZ_TIMES=5; fi
  "${parallel[@]}" -m "not e2e" "$@"
  # Trainings have the machine to themselves: Ray's processes have a lower priority than any test.
  python -m pytest --durations 20 -m e2e "$@"
fi
