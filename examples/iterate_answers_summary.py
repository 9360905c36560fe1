"""Print what `iterate_answers.sh` has found: the reward models' AUC, and two rounds next to one training."""

import sys
from pathlib import Path
from statistics import fmean

from scipy.stats import mannwhitneyu

from grpo_verl_ext.ablation.statistics import compare
from grpo_verl_ext.iterate.preferences import Pair, read_examples
from grpo_verl_ext.rewards.learned import LearnedReward
from grpo_verl_ext.rewards.rules import correctness
from grpo_verl_ext.runs.dumps import dump_file, read_dump

FOLDER = Path("outputs/iterate_answers")
STEPS = 8
"""Of a round, in `iterate_answers.yaml`."""
COLUMNS = (
    "seed",
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
    learned, held_out = LearnedReward.load(model), read_examples(pairs, Pair)
    right = learned.scores(sorted({(pair.prompt, pair.chosen) for pair in held_out}))
    wrong = learned.scores(sorted({(pair.prompt, pair.rejected) for pair in held_out}))
    return float(mannwhitneyu(right, wrong).statistic) / (len(right) * len(wrong))


def right(run: str, number: int, step: int) -> dict[int, float]:
    """Return for each test prompt whether its response was right after a step of a round."""
    folder = FOLDER / run / f"round-{number}" / "policy" / "validation"
    rows = sorted(read_dump(dump_file(folder, step)), key=lambda row: row.prompt)
    return {prompt: float(correctness(row.output, row.truth) > 0) for prompt, row in enumerate(rows)}


def cells(seed: int) -> tuple[list[float], str]:
    """Return a seed's numbers in the order of `COLUMNS`, and the last one in words, paired by prompt."""
    start, two, one = (f"{name}-seed-{seed}" for name in ("start", "two", "one"))
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


def main() -> None:
    found = {seed: cells(seed) for seed in map(int, sys.argv[1:])}
    print("| " + " | ".join(COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|")
    for seed, (numbers, by_prompt) in found.items():
        print(f"| {seed} | " + " | ".join(f"{number:.3f}" for number in numbers) + f" | {by_prompt} |")
    means = [fmean(column) for column in zip(*(numbers for numbers, _ in found.values()), strict=True)]
    two, one = ({seed: numbers[at] for seed, (numbers, _) in found.items()} for at in (-2, -1))
    print("| mean | " + " | ".join(f"{number:.3f}" for number in means) + f" | {difference(two, one)} |")


if __name__ == "__main__":
    main()
