"""Write prompts of the embedded task for iterate_answers_start.yaml, more than `prepare chain_sum` does.

    python examples/iterate_answers_prompts.py 1    # the seed

A reward model learns which sums are right only from many different ones. All are on the training side of the
task's split, so none is among its test prompts.
"""

import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from grpo_verl_ext.tasks.chain_sum.prepared import TASKS
from grpo_verl_ext.tasks.chain_sum.problems import draw_problems, rows
from grpo_verl_ext.tasks.folders import TRAIN, PreparedFolder, PreparedOutcome, write_rows

TASK = TASKS["chain_sum"]
PROMPTS = 8192
"""64 in each of 128 steps."""
FOLDER = Path("outputs/iterate_answers")


def write(seed: int, folder: Path = FOLDER, prompts: int = PROMPTS) -> PreparedOutcome:
    """Make the folder with the prompts of a seed, or do nothing if it is there."""
    lengths = range(TASK.min_terms, TASK.max_terms + 1)

    def fill(unfinished: Path) -> Mapping[str, Any]:
        drawn = draw_problems("train", prompts, lengths=lengths, seed=seed)
        write_rows(unfinished / TRAIN, rows(drawn, "train"))
        return {"found": {}}

    folder.mkdir(parents=True, exist_ok=True)
    settings = {"seed": seed, "prompts": prompts, "task": asdict(TASK)}
    prompts_of_seed = PreparedFolder(folder / f"prompts-seed-{seed}")
    return prompts_of_seed.make(settings, fill, force=False)


if __name__ == "__main__":
    print(write(int(sys.argv[1])).folder)
