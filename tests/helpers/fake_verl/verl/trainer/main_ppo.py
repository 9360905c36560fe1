"""Stand-in for verl's trainer where a test needs the same numbers twice; vLLM's depend on the load.

It writes what verl writes, in its order: rollouts, a checkpoint every second step and after the last one,
metrics, if one of its loggers is `file`; it keeps one checkpoint with trainer.max_actor_ckpt_to_keep=1; it
resumes like it. Environment: FAKE_KILL=N ends it before it logs step N, FAKE_KILL_SAVING=N while it saves
that step, FAKE_END=N after it with status 0, as trainer.total_epochs does. With FAKE_WAIT=N it waits after
that step, and makes the file FAKE_WAITS; 0 is before the first.
"""

import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

settings = dict(argument.lstrip("+").replace("@_global_=", "=").split("=", 1) for argument in sys.argv[1:])
checkpoints = Path(settings["trainer.default_local_dir"])
rollouts = Path(settings["trainer.rollout_data_dir"])
tracker = checkpoints / "latest_checkpointed_iteration.txt"
last = int(tracker.read_text()) if tracker.exists() else 0
steps = int(settings["trainer.total_training_steps"])
if last and not (checkpoints / f"global_step_{last}" / "actor").is_dir():
    sys.exit(f"no weights in global_step_{last}")


def wait_after(step: int) -> None:
    if os.environ.get("FAKE_WAIT") == str(step):
        Path(os.environ["FAKE_WAITS"]).touch()
        time.sleep(300)


wait_after(last)

for step in range(last + 1, steps + 1):
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
    if step % 2 == 0 or step == steps:
        if settings.get("trainer.max_actor_ckpt_to_keep") == "1":
            for weights in checkpoints.glob("global_step_*/actor"):
                shutil.rmtree(weights)
        if os.environ.get("FAKE_KILL_SAVING") == str(step):
            os.kill(os.getpid(), signal.SIGKILL)
        (checkpoints / f"global_step_{step}" / "actor").mkdir(parents=True)
        tracker.write_text(str(step))
    if os.environ.get("FAKE_KILL") == str(step):
        os.kill(os.getpid(), signal.SIGKILL)
    if "file" in settings["trainer.logger"]:
        with Path(os.environ["VERL_FILE_LOGGER_PATH"]).open("w" if step == last + 1 else "a") as file:
            data = {"acc": rng.random(), "timing_s/step": 0.125, "training/global_step": step}
            file.write(json.dumps({"step": step, "data": data}) + "\n")
    wait_after(step)
    if os.environ.get("FAKE_END") == str(step):
        sys.exit(0)
