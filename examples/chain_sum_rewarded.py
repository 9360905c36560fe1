"""Make responses with rewards that a training measures and does not train on, for the embedded task.

    python examples/chain_sum_rewarded.py FOLDER --task chain_sum_mixed --seeds 1 2

FOLDER/seed-1/test.parquet then has 32 test prompts of seed 1. Each has eight responses that its starting
model, the reference of a training, sampled at temperature 1, and their rewards. They are for
`algorithm.grpo_ext.rewarded_responses`. Responses that did not end within the budget were sampled again.
Needs no GPU; what is there is left as it is.
"""

import argparse
from pathlib import Path
from typing import Any

from chain_sum_teacher import complete_responses

from grpo_verl_ext.rewards.weighted_sum import compute_score
from grpo_verl_ext.tasks.chain_sum.prepare import prepare_chain_sum
from grpo_verl_ext.tasks.chain_sum.prepared import TASKS, TaskSettings
from grpo_verl_ext.tasks.folders import TEST, read_parquet, write_rows
from grpo_verl_ext.utils.files import appearing, locked

PROMPTS, RESPONSES = 32, 8
WEIGHTS = {"correctness": 1.0, "format": 1.0}
"""Of +task=chain_sum."""


def reward(text: str, row: dict[str, Any]) -> float:
    """Return what the training's reward function gives the response."""
    truth = row["reward_model"]["ground_truth"]
    scores = compute_score(row["data_source"], text, truth, row["extra_info"], weights=WEIGHTS)
    return float(scores["score"])


def write_rewarded(folder: Path, task: TaskSettings, *, seed: int) -> None:
    """Write the responses of one seed of the task into a new folder."""
    data = prepare_chain_sum(seed, settings=task).folder
    rows = read_parquet(data / TEST)[:PROMPTS]
    chats = [row["prompt"] for row in rows for _ in range(RESPONSES)]
    texts = complete_responses(data / "model", chats, budget=task.max_response_tokens, seed=seed)
    for number, row in enumerate(rows):
        own = texts[number * RESPONSES : (number + 1) * RESPONSES]
        row["extra_info"] |= {"responses": own, "rewards": [reward(text, row) for text in own]}
    with locked(folder, on_wait=lambda: print(f"waiting for {folder}")), appearing(folder) as unfinished:
        write_rows(unfinished / TEST, rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--task", choices=TASKS, default="chain_sum")
    parser.add_argument("--seeds", type=int, nargs="+", required=True, metavar="SEED")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    for seed in given.seeds:
        folder = given.folder / f"seed-{seed}"
        if not folder.exists():
            write_rewarded(folder, TASKS[given.task], seed=seed)
            print(f"{PROMPTS} × {RESPONSES} responses with rewards: {folder}")


if __name__ == "__main__":
    main()
