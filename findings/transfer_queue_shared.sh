#!/usr/bin/env bash
# One expects: two trainings on one Ray cluster, two jobs, have queues of their own.
# TransferQueue 0.1.11, which verl 0.9.1 uses: the controller has one name in one namespace, so that the second job's
# `init` joins the first one's queue and ignores its own configuration; both put samples into `train` and
# take the other's, and the first to end closes it. Pull request #115 of TransferQueue (merged) fixed the namespace.
set -euo pipefail
# shellcheck source=findings/venv.bash
source "$(dirname "$0")/venv.bash" TransferQueue==0.1.11 torch==2.13.0 tensordict==0.10.0 ray==2.60.0
"$place/venv/bin/python" -W ignore - 2> "$place/stderr" << 'PYTHON' || { tail -5 "$place/stderr" >&2; exit 1; }
import subprocess
import sys

import ray

JOB = """
import sys

import ray
from omegaconf import OmegaConf

import transfer_queue
from transfer_queue import interface

ray.init(address=sys.argv[1], logging_level="ERROR", log_to_driver=False)
transfer_queue.init(OmegaConf.create({"mine": int(sys.argv[2])}))
print("QUEUE", ray.get(interface._TQ_CONTROLLER.get_config.remote()).mine, flush=True)
input()
"""

cluster = ray.init(address="local", num_cpus=8, include_dashboard=False, logging_level="ERROR")
address, jobs, seen = cluster.address_info["address"], [], []
for number in (0, 1):
    command = [sys.executable, "-c", JOB, address, str(number)]
    jobs.append(subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
    seen.append(next(int(line.split()[1]) for line in jobs[-1].stdout if line.startswith("QUEUE")))
    print(f"job {number} asked for queue {number} and has queue {seen[-1]}")
for job in jobs:
    job.communicate("\n", timeout=60)
sys.exit(seen != [0, 0])
PYTHON
