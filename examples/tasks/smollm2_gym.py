"""Warm-start SmolLM2 on an arithmetic task of reasoning-gym: it is then right on some of the prompts.

    python examples/tasks/smollm2_model.py
    python examples/tasks/smollm2_gym.py FOLDER --seeds 1 2 3 4

FOLDER/seed-1 then has train.parquet and test.parquet, chain_sum of reasoning-gym with two numbers of one
digit, and the model, which has learned from the training prompts' answers. Its chat template shortens a
question to "Find: 4 + 7 = ", with a space at the end, without which the model is never right before it
learns. Each seed has prompts and a warm start of its own. Needs no GPU; what is there is left as it is.
"""

import argparse
from pathlib import Path

from reasoning_gym_data import GymSettings, prepare_reasoning_gym
from smollm2_model import WarmStart, smollm2_folder, write_warm_started

from grpo_verl_ext.tasks.folders import TRAIN, read_parquet
from grpo_verl_ext.utils.files import appearing, locked

TASK = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
TRAIN_ROWS, TEST_ROWS = 128, 48
"""Of the 200 sums and differences of two numbers of one digit."""
START = 0.4
"""Mean probability of the right answer, at temperature 1, at which the warm start ends."""
MAX_RESPONSE_TOKENS = 5
"""A sign, two digits and the end of the turn, and one more."""
TEMPLATE = (
    "{{ messages[0]['content'] | "
    "replace('State the final answer to the following arithmetic problem:', 'Find:') }} "
)


def make(folder: Path, *, seed: int) -> None:
    """Make the folder of one seed."""
    settings = GymSettings("chain_sum", TASK, TRAIN_ROWS, TEST_ROWS, seed, system="")
    prepare_reasoning_gym(settings, folder, force=False)
    rows = read_parquet(folder / TRAIN)
    examples = [(row["prompt"][0]["content"], row["reward_model"]["ground_truth"]) for row in rows]
    model = folder / "model"
    with locked(model, on_wait=lambda: print(f"waiting for {model}")), appearing(model) as unfinished:
        found = write_warm_started(
            unfinished,
            smollm2_folder(),
            examples,
            WarmStart(seed, start=START),
            max_response_tokens=MAX_RESPONSE_TOKENS,
            template=TEMPLATE,
        )
    print(f"{found['probability']:.3f} after {found['steps']} steps: {folder}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", required=True, metavar="SEED")
    given = parser.parse_args()
    for seed in given.seeds:
        folder = given.folder / f"seed-{seed}"
        if not (folder / "model").exists():
            make(folder, seed=seed)


if __name__ == "__main__":
    main()
