#!/usr/bin/env bash
# The contract, or other tests, against another verl than the installed one.
#
#   bash tests/contract/against.sh VERL [pytest arguments]
#
# VERL is a version (0.9.0), `newest` (the newest of the package index, pre-releases included), or whatever pip
# installs: a folder, a wheel, git+https://github.com/verl-project/verl
set -euo pipefail
verl=${1:?VERL is missing. Type: bash tests/contract/against.sh 0.9.0}
shift
[[ $verl == */* || $verl == *.whl ]] && [[ -e $verl ]] && verl=$(realpath "$verl")
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

case $verl in
  newest) requirement=(--pre --upgrade verl) ;;
  [0-9]*) requirement=("verl==$verl") ;;
  *) requirement=("$verl") ;;
esac

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python -m pip install --quiet --no-deps --target "$folder" "${requirement[@]}"
found=$(PYTHONPATH=$folder python -c 'import importlib.metadata as m; print(m.version("verl"))')
echo "verl $found"

(($#)) || set -- tests/contract
PYTHONPATH=$folder:$PWD${PYTHONPATH:+:$PYTHONPATH} python -m pytest "$@"
