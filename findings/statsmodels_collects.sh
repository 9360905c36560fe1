#!/usr/bin/env bash
# One expects: adjusting a handful of p-values costs microseconds.
# statsmodels 0.15.0: `multipletests(p, method="holm")` runs a full garbage collection at every call. It takes as long as
# the process has objects: 0.1 s beside torch and transformers. The other methods run none.
# `stats/multitest.py`: `gc.collect()` in the branch of holm.
# A simulation of 4,000 comparisons with four tests each spent 98 % of its time there.
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet statsmodels==0.15.0
"$place/venv/bin/python" -W ignore - << 'PYTHON'
import gc
import sys

from statsmodels.stats.multitest import multipletests

SEEN = ["holm: 10", "holm-sidak: 0", "bonferroni: 0", "fdr_bh: 0"]
whole = []
gc.callbacks.append(lambda phase, info: whole.append(1) if phase == "start" and info["generation"] == 2 else None)
gc.disable()  # no collection but those that are asked for
seen = []
for method in ("holm", "holm-sidak", "bonferroni", "fdr_bh"):
    whole.clear()
    for _ in range(10):
        multipletests([0.01, 0.02, 0.03, 0.04], method=method)
    seen.append("%s: %d" % (method, len(whole)))
print("full collections in ten calls")
print("\n".join(seen))
sys.exit(seen != SEEN)
PYTHON
