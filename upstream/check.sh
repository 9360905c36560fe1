#!/usr/bin/env bash
# Show for a clone of verl, or of TransferQueue, that each patch applies, that its test fails before and passes after.
#
#   bash upstream/check.sh CLONE [NAME …]
#
# The clone itself is not touched. A script NAME.py, where there is one, is run before and after, too. `python` is one
# in which verl can be imported.
set -euo pipefail

CLONE=${1:?"CLONE is missing; valid is a folder with a clone of verl. Type: bash upstream/check.sh verl"}
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if [[ -d $CLONE/transfer_queue ]]; then
  NAMES=(transfer_queue)
else
  NAMES=(dr_grpo dppo_script geo_mean cov legacy_rewards gdpo value_head weight_socket)
fi
if (($# > 1)); then NAMES=("${@:2}"); fi

PLACE=$(mktemp -d)
trap 'rm -rf "$PLACE"' EXIT
TREE=$PLACE/tree
git clone -q --shared "$CLONE" "$TREE"
echo "$(basename "$CLONE") at $(git -C "$TREE" log -1 --format='%h of %cs')"
export PYTHONPATH=$TREE

try() { # WHEN: the script and the tests of a patch; the status is pytest's
  if [[ -f $HERE/$name.py ]]; then python "$HERE/$name.py" 2>"$PLACE/said" | sed "s/^/  $1: /" || cat "$PLACE/said"; fi
  local status=0
  (cd "$TREE" && env -u PYTEST_ADDOPTS python -m pytest -q -p no:cacheprovider "${tests[@]}") >"$PLACE/pytest" 2>&1 || status=$?
  echo "  $1: $(grep -E '^[0-9]+ (passed|failed)' "$PLACE/pytest" | sed 's/,* [0-9]* warnings*//; s/ in .*//')"
  return $status
}

failed=0
for name in "${NAMES[@]}"; do
  patch=$HERE/$name.patch
  git -C "$TREE" reset -q --hard && git -C "$TREE" clean -fdq
  mapfile -t tests < <(git -C "$TREE" apply --numstat "$patch" | awk '$3 ~ /^tests\// { print $3 }')
  echo "$name"
  git -C "$TREE" apply --include='tests/*' "$patch"
  before=0 after=0
  try before || before=$?
  git -C "$TREE" apply --exclude='tests/*' "$patch"
  try after || after=$?
  # pytest's status 1 is: tests ran, and some failed
  if ((before != 1 || after != 0)); then
    echo "  WRONG: pytest ended with $before before and $after after; wanted are 1 and 0"
    cat "$PLACE/pytest"
    failed=1
  fi
done
exit $failed
