#!/usr/bin/env bash
# Make or update the environment for a machine without a GPU: .venv with verl, vLLM's CPU build, Ray and this
# package. Safe to repeat; an interrupted installation starts again from nothing.
#
#   bash examples/setup_cpu.sh [EXTRAS [REQUIREMENTS]]     EXTRAS: cpu (default), cpu,dev or others of pyproject.toml;
#                                                          REQUIREMENTS: a file of further packages
#
# Environment: PYTHON (python3), VENV (.venv). PyTorch's CPU build comes from UV_FIND_LINKS or pip's find-links,
# a folder or page that has it; without one from PyTorch's own index, as UV_TORCH_BACKEND=cpu tells uv.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

EXTRAS=${1:-cpu}
PYTHON=${PYTHON:-python3}
VENV=${VENV:-.venv}
UNFINISHED=$VENV/installation-unfinished
UV_VERSION=0.13.8

fail() { echo "setup_cpu.sh: $*" >&2; exit 1; }

"$PYTHON" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' ||
  fail "$PYTHON is $("$PYTHON" --version 2>&1); constraints/cpu.txt is for 3.11 and 3.12. Type: PYTHON=python3.11 bash examples/setup_cpu.sh"

# Without the lock, a second installation would take the first for an interrupted one and delete it.
mkdir -p "$(dirname "$VENV")"
exec 9>"$VENV.lock"
flock --nonblock 9 || { echo "setup_cpu.sh: waiting, $VENV is being installed by another process" >&2; flock 9; }

if [[ -e $UNFINISHED ]]; then
  find "$VENV" -mindepth 1 ! -path "$UNFINISHED" -delete
elif [[ ! -x $VENV/bin/python && -d $VENV && -n $(ls -A "$VENV") ]]; then
  fail "$VENV is no environment, and not empty; valid is a new folder, or an environment. Type: VENV=.venv bash examples/setup_cpu.sh"
fi
if [[ ! -x $VENV/bin/python ]]; then
  # Only an environment that this script makes is marked, and so made anew after an interruption.
  mkdir -p "$VENV"
  touch "$UNFINISHED"
  "$PYTHON" -m venv "$VENV" ||
    fail "could not make $VENV. On Debian and Ubuntu type: apt-get install python3-venv"
fi

"$VENV/bin/python" -m pip install --quiet --disable-pip-version-check "uv==$UV_VERSION"

# uv does not read pip's settings, so pass on the folder of wheels that pip is configured with.
find_links=$("$VENV/bin/python" -m pip config get :env:.find-links 2>/dev/null ||
  "$VENV/bin/python" -m pip config get global.find-links 2>/dev/null || true)
if [[ -n ${UV_FIND_LINKS:=$find_links} ]]; then export UV_FIND_LINKS; else export UV_TORCH_BACKEND=${UV_TORCH_BACKEND:-cpu}; fi

"$VENV/bin/uv" pip install --quiet --python "$VENV/bin/python" \
  --constraints constraints/cpu.txt --overrides constraints/cpu-overrides.txt ${2:+--requirements "$2"} \
  --editable ".[$EXTRAS]" ||
  fail "the installation failed. If torch==…+cpu was not found, type: UV_FIND_LINKS=<folder or page that has it> bash examples/setup_cpu.sh"

rm -f "$UNFINISHED"
echo "setup_cpu.sh: $VENV is ready. Type: source $VENV/bin/activate" >&2
