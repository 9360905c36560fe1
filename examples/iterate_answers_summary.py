"""Print what `iterate_answers.sh` has found: the reward models' AUC, and two rounds next to one training."""

import json
import sys
from pathlib import Path
from statistics import fmean

from scipy.stats import mannwhitneyu

from grpo_verl_ext.ablation.statistics import compare
from grpo_verl_ext.iterate.manifest import Results
from grpo_verl_ext.iterate.preferences import Pair, read_examples
from grpo_verl_ext.rewards.learned import LearnedReward

FOLDER = Path("outputs/iterate_answers")
ACCURACY = "val-core/chain_sum/acc/mean@1"
COLUMNS = ("seed", "AUC, first model", "AUC, after round 1", "start", "round 1", "round 2", "one training")


def auc(model: Path, pairs: Path) -> float:
    """Return the probability that a right held-out response scores above a wrong one, of any prompt."""
    learned, held_out = LearnedReward.load(model), read_examples(pairs, Pair)
    right = learned.scores(sorted({(pair.prompt, pair.chosen) for pair in held_out}))
    wrong = learned.scores(sorted({(pair.prompt, pair.rejected) for pair in held_out}))
    return float(mannwhitneyu(right, wrong).statistic) / (len(right) * len(wrong))


def policies(name: str, seed: int) -> list[Results]:
    """Return the results of the policy's training in each round of a run."""
    manifest = json.loads((FOLDER / f"{name}-seed-{seed}" / "manifest.json").read_text())
    return [each["parts"]["policy"] for each in manifest["rounds"]]


def row(seed: int) -> tuple[float, ...]:
    """Return a seed's numbers, in the order of `COLUMNS`."""
    first, second = (FOLDER / f"{name}-seed-{seed}" / "round-1" for name in ("start", "two"))
    held_out = first / "held_out.jsonl"
    two, (one,) = policies("two", seed), policies("one", seed)
    return (
        auc(first / "reward_model", held_out),
        auc(second / "reward_model", held_out),
        two[0]["validation_before"][ACCURACY],
        *(each["validation_after"][ACCURACY] for each in (*two, one)),
    )


def main() -> None:
    seeds = [int(argument) for argument in sys.argv[1:]]
    rows = {seed: row(seed) for seed in seeds}
    print("| " + " | ".join(COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|")
    for seed, numbers in rows.items():
        print(f"| {seed} | " + " | ".join(f"{number:.3f}" for number in numbers) + " |")
    means = [fmean(column) for column in zip(*rows.values(), strict=True)]
    print("| mean | " + " | ".join(f"{number:.3f}" for number in means) + " |")
    difference = compare(*({seed: numbers[at] for seed, numbers in rows.items()} for at in (-2, -1)))
    if difference is not None and difference.low is not None and difference.high is not None:
        print(
            f"\ntwo rounds − one training: {difference.difference:+.3f} "
            f"({difference.low:.3f} … {difference.high:.3f}), 95 %, paired by seed"
        )


if __name__ == "__main__":
    main()
