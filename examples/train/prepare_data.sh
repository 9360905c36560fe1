#!/usr/bin/env bash
# Prepare GSM8K or MATH with verl's own preprocessing. verl's wheel does not contain it; VERL is a checkout:
#
#   git clone --depth 1 --branch v0.9.1 https://github.com/verl-project/verl
#   VERL=verl bash examples/train/prepare_data.sh gsm8k [arguments of verl's script]
#   VERL=verl bash examples/train/prepare_data.sh math
#
# verl's script fetches the data from the Hugging Face hub and writes train.parquet and test.parquet.
#
# Tests run this with a python3 that only records its arguments. The preprocessing itself was not run.
set -xeuo pipefail

case ${1:-} in
  gsm8k) SCRIPT=gsm8k.py ;;
  math) SCRIPT=math_dataset.py ;;
  *)
    echo "prepare_data.sh: the task is '${1:-}'; valid are gsm8k, math. Type: VERL=verl bash $0 gsm8k" >&2
    exit 1
    ;;
esac
VERL=${VERL:?"is missing; valid is a checkout of verl. Type: VERL=verl bash $0 $1"}
DATA=${DATA:-$HOME/data/$1}

python3 "$VERL/examples/data_preprocess/$SCRIPT" --local_save_dir "$DATA" "${@:2}"
