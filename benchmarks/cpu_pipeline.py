"""Measure start-up, step and total time of verl's trainer on the CPU platform, with the embedded task.

python benchmarks/cpu_pipeline.py [--repeat 3] [--steps 16] [verl overrides]

"Start-up" is the time from the command to the end of the first training step, less a median step: verl starts
its agent loop during the first step. Validation and checkpoints are off. A step has 128 responses (16 prompts
× 8), two optimizer steps, reference and old log-probs.
"""

import os
import platform
import tempfile
from pathlib import Path
from statistics import median

from common import parser, train

PARTS = ("step", "gen", "old_log_prob", "ref", "adv", "update_actor", "update_weights")


def main() -> None:
    options, overrides = parser(__doc__, repeat=3, steps=16).parse_known_args()
    training = ["+algo=grpo", "+platform=cpu", "+task=chain_sum"]
    training.append(f"trainer.total_training_steps={options.steps}")
    startups: list[float] = []
    totals: list[float] = []
    steps: list[dict[str, float]] = []
    for _ in range(options.repeat):
        with tempfile.TemporaryDirectory() as folder:
            total, logged, records = train(Path(folder), [*training, *overrides])
        steps += records[1:]
        totals.append(total)
        startups.append(logged[0] - median(record["timing_s/step"] for record in records[1:]))
        seconds = [round(record["timing_s/step"], 1) for record in records]
        print(f"start-up {startups[-1]:.1f} s; steps: {seconds}; in all {total:.1f} s", flush=True)
    print(f"\n{os.cpu_count()} cores, {platform.processor() or platform.machine()}, {platform.platform()}")
    print(f"in all, {options.steps} steps: median of {len(totals)}: {median(totals):.1f} s")
    print(f"start-up: median of {len(startups)}: {median(startups):.1f} s; of {len(steps)} steps:")
    for part in PARTS:
        print(f"  {part:15s} {median(record[f'timing_s/{part}'] for record in steps):.2f} s")


if __name__ == "__main__":
    main()
