#!/usr/bin/env bash
# What quickstart.sh and smollm2.sh share: check the arguments, install, and start the example.
#
#   [REQUIREMENTS=file] bash examples/quickstart_common.sh EXAMPLE EXTRAS [options] [verl overrides]
set -euo pipefail
trap 'printf "\nInterrupted. Run the same command again to resume.\n" >&2; exit 130' INT
started=$(date +%s)
cd "$(dirname "${BASH_SOURCE[0]}")/.."
example=$1 extras=$2
shift 2

# Wrong arguments are refused before anything is installed; an old Python is refused by setup_cpu.sh.
python=${PYTHON:-python3}
if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
  "$python" examples/quickstart_arguments.py "$example" "$@"
  for argument in "$@"; do
    if [[ $argument == -h || $argument == --help ]]; then exit; fi
  done
fi
bash examples/setup_cpu.sh "$extras" ${REQUIREMENTS:+"$REQUIREMENTS"}
# Modules compiled once serve every process that the run starts.
unset PYTHONDONTWRITEBYTECODE
exec "${VENV:-.venv}/bin/python" "examples/$example.py" --started "$started" "$@"
