"""Measure the growth of resident memory over a long training on the CPU platform, per kind of process.

python benchmarks/soak.py [--algo gvpo] [--steps 200] [--out outputs/soak] [verl overrides]

Trains the embedded task with 4 prompts × 4 responses per step, and a checkpoint every 50 steps. After each
step the memory of every process of the run is read: its resident pages that no other process shares (unique
set size). The slope is that of a least-squares line through the second half of the steps, since libraries
fill their caches in the first.
"""

from collections import Counter
from pathlib import Path

import pandas
from common import MIB, memory, parser
from scipy.stats import linregress

from grpo_verl_ext.runs.child_process import marked
from grpo_verl_ext.runs.verl_run import Metrics, VerlRun


def main() -> None:
    arguments = parser(__doc__, algo="gvpo", steps=200, out=Path("outputs/soak"))
    options, overrides = arguments.parse_known_args()
    settings = [
        *(f"+algo={options.algo}", "+platform=cpu", "+task=chain_sum"),
        *("data.train_batch_size=4", "actor_rollout_ref.actor.ppo_mini_batch_size=2"),
        *("actor_rollout_ref.rollout.n=4", "trainer.total_epochs=100"),
        *("trainer.val_before_train=false", "trainer.test_freq=-1", "trainer.save_freq=50"),
        "trainer.max_actor_ckpt_to_keep=1",
        *overrides,
    ]
    run = VerlRun(options.out / options.algo, settings, options.steps)
    by_step: dict[int, Counter[str]] = {}

    def look(metrics: Metrics) -> None:
        if metrics and (step := max(metrics)) not in by_step:
            by_step[step] = memory(marked(str(run.folder.resolve())), "uss")

    run.go(on_metrics=look)
    mib = pandas.DataFrame.from_dict(by_step, orient="index").fillna(0) / MIB
    mib.to_json(run.folder / "memory.json", orient="index", indent=1)
    print(table(mib))


def table(mib: pandas.DataFrame) -> str:
    """Return the memory by step and kind as a Markdown table, with slopes and their standard errors."""
    later = mib.iloc[len(mib) // 2 :].sort_index(axis="columns")
    later["all"] = later.sum(axis="columns")
    later["all but Ray's own"] = later["all"] - later.filter(like="Ray's ").sum(axis="columns")
    first, last = later.index[0], later.index[-1]
    lines = [f"| process | MiB at step {first} | MiB at step {last} | MiB per step |", "| --- " * 4 + "|"]
    for name, values in later.items():
        line = linregress(later.index, values)
        slope = f"{line.slope:+.3f} ± {line.stderr:.3f}"
        lines.append(f"| {name} | {values.iloc[0]:.0f} | {values.iloc[-1]:.0f} | {slope} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
