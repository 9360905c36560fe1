#!/usr/bin/env bash
# Everything that CI runs: lint, format, types, layers, the documentation site, then every test, the end-to-end ones
# included.
#
#   bash tests/run.sh [pytest arguments]      e.g. bash tests/run.sh -m "not e2e"
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bash examples/setup_cpu.sh cpu,dev
VENV=${VENV:-.venv}
export PATH="$PWD/$VENV/bin:$PATH"
# Modules compiled once serve every process that the end-to-end tests start.
unset PYTHONDONTWRITEBYTECODE

pre-commit run --all-files --show-diff-on-failure
mkdocs build --strict --quiet
if (($#)); then exec python -m pytest "$@"; fi

# The end-to-end tests mostly wait, for processes to start and for verl to look for rollouts: the others run
# meanwhile, as nice as Ray makes its workers, which would starve otherwise.
log=$(mktemp)
python -m pytest -m e2e > "$log" 2>&1 &
end_to_end=$!
trap 'kill "$end_to_end" 2> /dev/null || true; rm -f "$log"' EXIT
status=0
bash tests/contract/against.sh 0.9.0 || status=1
nice -n 15 python -m pytest -m "not e2e" || status=1
wait "$end_to_end" || status=1
trap 'rm -f "$log"' EXIT
cat "$log"
exit "$status"
