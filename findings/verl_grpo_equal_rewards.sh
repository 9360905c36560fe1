#!/usr/bin/env bash
# One expects: in GRPO a group whose responses all have the same reward has the advantage 0.
# verl 0.9.1: with rewards such as 0.1 to 0.9 the float32 mean of a group is not its reward, and the standard deviation is
# of rounding, too: divided by it plus 1e-6, the rest is an advantage, the same for all responses of the group.
# `core_algos.py`, `compute_grpo_outcome_advantage`: -0.056 at 0.9 and 0.86 at 100.1 for groups of 8 and 16 on one machine.
# Groups that should teach nothing push all their responses up or down. With rewards of 0 and 1 it does not happen.
set -euo pipefail
# shellcheck source=findings/venv.bash
source "$(dirname "$0")/venv.bash" verl==0.9.1 torch==2.13.0 tensordict==0.10.0 transformers==5.10.4 ray==2.60.0
"$place/venv/bin/python" -W ignore - 2> "$place/stderr" << 'PYTHON' || { tail -5 "$place/stderr" >&2; exit 1; }
import sys

import numpy as np
import torch
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

SEEN = [
    "groups of 2 to 32 equal rewards of 0.1, 0.2 ... 0.9: some have an advantage beyond 0.01",
    "groups of 2 to 32 equal rewards of 99.1, 99.2 ... 99.9: some have an advantage beyond 0.5",
    "groups of 2 to 32 equal rewards of 0 or 1: none has an advantage other than 0",
]


def largest(rewards) -> float:
    """Return the largest advantage of groups whose responses all have one of these rewards."""
    found = []
    for reward in rewards:
        for size in range(2, 33):
            scores = torch.full((size, 1), reward)
            advantages, _ = compute_grpo_outcome_advantage(
                scores, torch.ones(size, 1), np.array(["prompt"] * size, dtype=object)
            )
            found.append(float(advantages.abs().max()))
    return max(found)


groups = "groups of 2 to 32 equal rewards of"
tenths = [number / 10 for number in range(1, 10)]
seen = [
    "%s 0.1, 0.2 ... 0.9: %s" % (groups, "some have an advantage beyond 0.01" if largest(tenths) > 0.01 else "all 0"),
    "%s 99.1, 99.2 ... 99.9: %s"
    % (groups, "some have an advantage beyond 0.5" if largest([99 + each for each in tenths]) > 0.5 else "all 0"),
    "%s 0 or 1: %s" % (groups, "none has an advantage other than 0" if largest([0.0, 1.0]) == 0 else "some have one"),
]
print("\n".join(seen))
sys.exit(seen != SEEN)
PYTHON
