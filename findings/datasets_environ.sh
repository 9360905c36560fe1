#!/usr/bin/env bash
# One expects: `Dataset.filter` returns a dataset and leaves the environment of the process alone.
# datasets 5.2.0: with `num_proc`, even 1, `os.environ` is another object afterwards. What kept the first one, such as
# rich's Console, sees no later change; children get TOKENIZERS_PARALLELISM=false, which `os.environ` does not show.
# `arrow_dataset.py`, `Dataset.map`: `os.environ = prev_env`, a deep copy made before the variable was set.
# verl filters long prompts by it (`data.filter_overlong_prompts`), in the process of the trainer.
set -euo pipefail
# shellcheck source=findings/venv.bash
source "$(dirname "$0")/venv.bash" datasets==5.2.0 rich==15.0.0
env -u TOKENIZERS_PARALLELISM -u FORCE_COLOR -u NO_COLOR -u TTY_COMPATIBLE HF_HOME="$place/hf" \
  "$place/venv/bin/python" -W ignore - 2> "$place/stderr" << 'PYTHON' || { tail -5 "$place/stderr" >&2; exit 1; }
import os
import subprocess
import sys

from datasets import Dataset
from rich.console import Console

SEEN = [
    'the same object: False',
    "os.environ: None; of a child: 'false'",
    "with FORCE_COLOR set, rich's console is a terminal: False",
]
first = os.environ
Dataset.from_dict({"x": [1, 2, 3]}).filter(bool, input_columns="x", num_proc=1)
seen = ["the same object: %s" % (os.environ is first)]

child = [sys.executable, "-c", "import os; print(repr(os.environ.get('TOKENIZERS_PARALLELISM')))"]
told = subprocess.run(child, capture_output=True, text=True, check=True).stdout.strip()
seen.append("os.environ: %s; of a child: %s" % (os.environ.get("TOKENIZERS_PARALLELISM"), told))

os.environ["FORCE_COLOR"] = "1"
seen.append("with FORCE_COLOR set, rich's console is a terminal: %s" % Console(file=open(os.devnull, "w")).is_terminal)

print("\n".join(seen))
sys.exit(seen != SEEN)
PYTHON
