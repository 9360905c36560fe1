"""Measure the growth of resident memory over a long training on the CPU platform, per kind of process.

python benchmarks/soak.py [--algo gvpo] [--steps 200] [--out outputs/soak] [verl overrides]

Trains the embedded task with 4 prompts × 4 responses per step, and a checkpoint every 50 steps. After each
step the memory of every process of the run is read: its resident pages that no other process shares (unique
set size). The slope is that of a least-squares line through the second half of the steps, since libraries
fill their caches in the first.
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path

import psutil
from run_processes import kind
from scipy.stats import linregress

from grpo_verl_ext.runs.child_process import marked
from grpo_verl_ext.runs.metrics import Metrics
from grpo_verl_ext.runs.verl_run import VerlRun
from grpo_verl_ext.utils.files import write_whole

MIB = 2**20
Memory = dict[str, float]
"""MiB by kind of process."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--algo", default="gvpo")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path("outputs/soak"))
    options, overrides = parser.parse_known_args()
    run = VerlRun(options.out / options.algo, settings(options.algo, overrides), options.steps)
    by_step = soaked(run)
    write_whole(run.folder / "memory.json", json.dumps(by_step, indent=1))
    print(table(by_step))


def settings(algo: str, overrides: list[str]) -> list[str]:
    return [
        *(f"+algo={algo}", "+platform=cpu", "+task=chain_sum"),
        *("data.train_batch_size=4", "actor_rollout_ref.actor.ppo_mini_batch_size=2"),
        *("actor_rollout_ref.rollout.n=4", "trainer.total_epochs=100"),
        *("trainer.val_before_train=false", "trainer.test_freq=-1", "trainer.save_freq=50"),
        "trainer.max_actor_ckpt_to_keep=1",
        *overrides,
    ]


def soaked(run: VerlRun) -> dict[int, Memory]:
    """Train to the end, and return the memory after each step whose end was seen."""
    by_step: dict[int, Memory] = {}

    def look(metrics: Metrics) -> None:
        if metrics and (step := max(metrics)) not in by_step:
            by_step[step] = memory(str(run.folder.resolve()))

    run.go(on_metrics=look)
    return by_step


def memory(mark: str) -> Memory:
    """Return the current memory of all processes of the run, by kind."""
    found: Memory = defaultdict(float)
    for process in marked(mark):
        try:
            found[kind(process)] += process.memory_full_info().uss / MIB
        except psutil.NoSuchProcess:
            continue
    return dict(found)


def table(by_step: dict[int, Memory]) -> str:
    """Return the memory and its slopes with standard errors, as a Markdown table."""
    steps = sorted(by_step)[len(by_step) // 2 :]
    kinds = sorted({name for step in steps for name in by_step[step]})
    rows = {name: [name] for name in kinds}
    rows["all but Ray's own"] = [name for name in kinds if not name.startswith("Ray's ")]
    rows["all"] = kinds
    lines = [
        f"| process | MiB at step {steps[0]} | MiB at step {steps[-1]} | MiB per step |",
        "| --- | --- | --- | --- |",
    ]
    for name, parts in rows.items():
        values = [sum(by_step[step].get(part, 0.0) for part in parts) for step in steps]
        line = linregress(steps, values)
        slope = f"{line.slope:+.3f} ± {line.stderr:.3f}"
        lines.append(f"| {name} | {values[0]:.0f} | {values[-1]:.0f} | {slope} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
