"""Stand-in for a cluster's ``python -m verl.trainer.main_ppo …``, without training.

Overrides control it: ``+name=``, ``+signs=`` (a folder), ``+wait_for=`` (signs), ``+status=``.
"""

import json
import os
import sys
import time
from pathlib import Path


def main() -> int:
    assert sys.argv[1:3] == ["-m", "verl.trainer.main_ppo"], sys.argv
    arguments = dict(argument.split("=", 1) for argument in sys.argv[3:])
    signs, name = Path(arguments["+signs"]), arguments["+name"]
    print("arguments", json.dumps(sys.argv[3:]))
    with (signs / f"{name}.begun").open("a") as begun:
        begun.write("once\n")
    steps = int(arguments["trainer.total_training_steps"])
    with Path(os.environ["VERL_FILE_LOGGER_PATH"]).open("w", buffering=1) as metrics:
        for step in range(1, steps):
            metrics.write(json.dumps({"step": step, "data": {"score": step}}) + "\n")
        while not all((signs / sign).exists() for sign in arguments["+wait_for"].split()):
            time.sleep(0.1)
        if arguments["+status"] == "0":
            data = {"score": steps, "training/global_step": steps}
            metrics.write(json.dumps({"step": steps, "data": data}) + "\n")
    print("the reason of", name)
    return int(arguments["+status"])


if __name__ == "__main__":
    sys.exit(main())
