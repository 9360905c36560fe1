"""Stand-in for verl's trainer where a test needs the same numbers twice; vLLM's depend on the load.

It writes what verl writes, in its order: rollouts, a checkpoint every second step, metrics; it resumes like
it.
"""

import json
import os
import random
import sys
import time
from pathlib import Path

settings = dict(argument.lstrip("+").split("=", 1) for argument in sys.argv[1:])
checkpoints = Path(settings["trainer.default_local_dir"])
rollouts = Path(settings["trainer.rollout_data_dir"])
last = max((int(folder.name.split("_")[-1]) for folder in checkpoints.glob("global_step_*")), default=0)

for step in range(last + 1, int(settings["trainer.total_training_steps"]) + 1):
    time.sleep(0.15)
    rng = random.Random(f"{settings['algo']} {settings['data.seed']} {step}")
    rollouts.mkdir(parents=True, exist_ok=True)
    rows = [
        {
            "input": "?",
            "output": "x" * rng.randrange(9),
            "gts": 1,
            "score": rng.randrange(2),
            "step": step,
            "uid": f"p_{i}_0",
        }
        for i in range(4)
    ]
    (rollouts / f"{step}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if step % 2 == 0:
        (checkpoints / f"global_step_{step}").mkdir(parents=True)
    with Path(os.environ["VERL_FILE_LOGGER_PATH"]).open("w" if step == last + 1 else "a") as file:
        file.write(json.dumps({"step": step, "data": {"acc": rng.random(), "timing_s/step": 0.125}}) + "\n")
