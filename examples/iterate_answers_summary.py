"""Print what `iterate_answers.sh` has found: the reward models' AUC, and two rounds next to one training.

    python examples/iterate_answers_summary.py 1 101 2    # seeds of trainings

The last two digits of a seed are its start: 1 and 101 have the same first reward model.
"""

import sys
from itertools import groupby
from pathlib import Path
from statistics import fmean

from scipy.stats import mannwhitneyu

from grpo_verl_ext.ablation.measures import compare
from grpo_verl_ext.iterate.examples import Pair
from grpo_verl_ext.rewards.learned import LearnedReward
from grpo_verl_ext.rewards.rules import correctness
from grpo_verl_ext.runs.verl_run import read_dump

FOLDER = Path("outputs/iterate_answers")
STEPS = 8
"""Of a round, in `iterate_answers.yaml`."""
STARTS = 100
"""More than the largest seed of a start."""
COLUMNS = (
    "start, seed",
    "AUC of the first model",
    "AUC after round 1",
    "right at the start",
    "after round 1",
    "after round 2",
    "after one training",
    "two rounds − one training",
)


def auc(model: Path, pairs: Path) -> float:
    """Return the probability that a right held-out response scores above a wrong one, of any prompt."""
    learned, held_out = LearnedReward.load(model), Pair.read(pairs)
    right = [learned.score(*each) for each in sorted({(pair.prompt, pair.chosen) for pair in held_out})]
    wrong = [learned.score(*each) for each in sorted({(pair.prompt, pair.rejected) for pair in held_out})]
    return float(mannwhitneyu(right, wrong).statistic) / (len(right) * len(wrong))


def right(run: str, number: int, step: int) -> dict[int, float]:
    """Return for each test prompt whether its response was right after a step of a round."""
    folder = FOLDER / run / f"round-{number}" / "policy" / "validation"
    rows = sorted(read_dump(folder / f"{step}.jsonl"), key=lambda row: row.prompt)
    return {prompt: float(correctness(row.output, row.truth) > 0) for prompt, row in enumerate(rows)}


def cells(seed: int) -> tuple[list[float], str]:
    """Return a seed's numbers in the order of `COLUMNS`, and the last one in words, paired by prompt."""
    start, two, one = f"start-seed-{seed % STARTS}", f"two-seed-{seed}", f"one-seed-{seed}"
    held_out = FOLDER / start / "round-1" / "held_out.jsonl"
    policies = [right(two, 1, 0), right(two, 1, STEPS), right(two, 2, STEPS), right(one, 1, 2 * STEPS)]
    models = [auc(FOLDER / run / "round-1" / "reward_model", held_out) for run in (start, two)]
    return [*models, *(fmean(policy.values()) for policy in policies)], difference(*policies[-2:])


def difference(two: dict[int, float], one: dict[int, float]) -> str:
    """Return the mean difference with the 95 % interval of Student's t."""
    found = compare(two, one)
    assert found is not None
    if found.low is None:
        return f"{found.difference:+.3f}"
    return f"{found.difference:+.3f} ({found.low:.3f} … {found.high:.3f})"


def mean(found: dict[int, list[float]]) -> tuple[list[float], str]:
    """Return the means of `cells` and the difference, paired by seed."""
    two, one = ({seed: numbers[at] for seed, numbers in found.items()} for at in (-2, -1))
    return [fmean(column) for column in zip(*found.values(), strict=True)], difference(two, one)


def row(name: str, numbers: list[float], of_both: str) -> str:
    return f"| {name} | " + " | ".join(f"{number:.3f}" for number in numbers) + f" | {of_both} |"


def main() -> None:
    seeds = sorted(map(int, sys.argv[1:]), key=lambda seed: (seed % STARTS, seed))
    print("| " + " | ".join(COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|")
    means = {}
    for start, own in groupby(seeds, key=lambda seed: seed % STARTS):
        trainings = {}
        for seed in own:
            trainings[seed], by_prompt = cells(seed)
            print(row(f"{start}, {seed}", trainings[seed], by_prompt))
        means[start], of_trainings = mean(trainings)
        if len(trainings) > 1:
            print(row(f"{start}, mean of {len(trainings)}", means[start], of_trainings))
    print(row("mean of the starts", *mean(means)))


if __name__ == "__main__":
    main()
