"""Print the names under which two trainings of verl at the same time, each with its own Ray, send weights."""

import re
import subprocess
import sys
from pathlib import Path

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
    print(f"ipc:///tmp/rl-colocate-zmq-{job}-replica-0-rank-0.sock")
    each.communicate("\n")
