"""Measure start-up, step and total time of verl's trainer on the CPU platform, with the embedded task.

python benchmarks/cpu_pipeline.py [--repeat 3] [--steps 16] [verl overrides]

"Start-up" is the time from the command to the end of the first training step, less a median step: verl starts
its agent loop during the first step. Validation and checkpoints are off. A step has 128 responses (16 prompts
× 8), two optimizer steps, reference and old log-probs.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from grpo_verl_ext.utils.console import ending

PARTS = ("gen", "old_log_prob", "ref", "adv", "update_actor", "update_weights")


def run(steps: int, overrides: list[str], folder: Path) -> tuple[float, float, list[dict[str, float]]]:
    """Train; return the seconds to the end of the first step and of the command, and each step's metrics."""
    metrics = folder / "metrics.jsonl"
    command = [
        *(sys.executable, "-m", "verl.trainer.main_ppo", "+algo=grpo", "+platform=cpu", "+task=chain_sum"),
        *(f"trainer.total_training_steps={steps}", "trainer.val_before_train=false", "trainer.test_freq=-1"),
        *("trainer.save_freq=-1", "trainer.logger=[file]", f"hydra.run.dir={folder / 'hydra'}"),
        *overrides,
    ]
    started = time.time()
    with (folder / "verl.log").open("w") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "VERL_FILE_LOGGER_PATH": str(metrics)},
        )
        first_logged = None
        while process.poll() is None:
            if first_logged is None and metrics.exists() and metrics.stat().st_size:
                first_logged = time.time()
            time.sleep(0.1)
    ended = time.time()
    if process.returncode != 0 or first_logged is None:
        sys.exit((folder / "verl.log").read_text()[-3000:] + f"\nended with {ending(process.returncode)}")
    records = [json.loads(line)["data"] for line in metrics.read_text().splitlines()]
    return first_logged - started, ended - started, records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--steps", type=int, default=16)
    options, overrides = parser.parse_known_args()
    startups: list[float] = []
    totals: list[float] = []
    steps: list[dict[str, float]] = []
    for _ in range(options.repeat):
        with tempfile.TemporaryDirectory() as folder:
            first_end, total, records = run(options.steps, overrides, Path(folder))
        steps += records[1:]
        totals.append(total)
        startups.append(first_end - statistics.median(r["timing_s/step"] for r in records[1:]))
        seconds = [round(r["timing_s/step"], 1) for r in records]
        print(f"start-up {startups[-1]:.1f} s; steps: {seconds}; in all {total:.1f} s", flush=True)
    print(f"\n{os.cpu_count()} cores, {platform.processor() or platform.machine()}, {platform.platform()}")
    print(f"in all, {options.steps} steps: median of {len(totals)}: {statistics.median(totals):.1f} s")
    print(f"start-up: median of {len(startups)}: {statistics.median(startups):.1f} s")
    print(f"step: median of {len(steps)}: {statistics.median(r['timing_s/step'] for r in steps):.2f} s")
    for part in PARTS:
        print(f"  {part:15s} {statistics.median(r[f'timing_s/{part}'] for r in steps):.2f} s")


if __name__ == "__main__":
    main()
