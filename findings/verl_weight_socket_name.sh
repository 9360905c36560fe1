#!/usr/bin/env bash
# One expects: two trainings on one machine, each with a Ray of its own, send weights through different sockets.
# verl 0.9.1: the socket's name has Ray's job id, which counts within its Ray, so both have the same name; the
# second one hangs, or a server loads the other training's weights. Pull request #6246 (merged) put
# the id there. It matters also beside what is left of an earlier training.
set -euo pipefail
# shellcheck source=findings/venv.bash
source "$(dirname "$0")/venv.bash" verl==0.9.1 torch==2.13.0 tensordict==0.10.0 transformers==5.10.4 ray==2.60.0
"$place/venv/bin/python" -W ignore - 2> "$place/stderr" << 'PYTHON' || { tail -5 "$place/stderr" >&2; exit 1; }
import sys
import re
import subprocess
import sys
from pathlib import Path

SEEN = [
    'ipc:///tmp/rl-colocate-zmq-01000000-replica-0-rank-0.sock',
    'ipc:///tmp/rl-colocate-zmq-01000000-replica-0-rank-0.sock',
]
seen = []

import verl

SENDER = Path(verl.__file__).parent / "workers/rollout/vllm_rollout/vllm_rollout.py"
TRAINING = """
import ray
ray.init(address="local", num_cpus=1, include_dashboard=False, logging_level="ERROR")
from verl.utils.ray_utils import *
print("JOB", {name}, flush=True)
input()
"""

(name,) = re.findall(r"job_id = (.*)", SENDER.read_text(encoding="utf-8"))
command = [sys.executable, "-c", TRAINING.format(name=name)]
pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
trainings = [subprocess.Popen(command, text=True, **pipes) for _ in range(2)]  # type: ignore[call-overload]
jobs = [next(line.split()[1] for line in each.stdout if line.startswith("JOB")) for each in trainings]
for each, job in zip(trainings, jobs, strict=True):
    seen.append(f"ipc:///tmp/rl-colocate-zmq-{job}-replica-0-rank-0.sock")
    each.communicate("\n")

print("\n".join(seen))
sys.exit(seen != SEEN)
PYTHON
