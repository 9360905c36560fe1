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
(($#)) || bash tests/contract/against.sh 0.9.0
python -m pytest "$@"
