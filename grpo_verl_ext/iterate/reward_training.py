"""Train a reward model with TRL, in a process of its own: ``python -m … JOB.json``."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
import transformers

from grpo_verl_ext.iterate.examples import Pair, Steps
from grpo_verl_ext.rewards.learned import LearnedReward


def train_reward_model(
    *, start: str, train: str, held_out: str, target: str, seed: int, trainer: dict[str, Any], steps: bool
) -> None:
    """Train and save the model, and measure it on held-out examples before and after: ``results.json``.

    A ``start`` without a score head gets a new one, drawn by the seed. ``train`` and ``held_out``, which may
    be empty, are files of pairs, or with ``steps`` of steps; ``trainer`` has fields of TRL's
    ``RewardConfig``, or of its ``PRMConfig``.
    """
    from datasets import Dataset

    kind = Steps if steps else Pair
    examples, measured = (kind.read(Path(file)) for file in (train, held_out))
    transformers.set_seed(seed)  # a new head is drawn when the model is loaded
    learned = LearnedReward.load(start, of_steps=steps)
    trainer_class, config = of_trl(trainer, steps=steps, output_dir=target, seed=seed)
    running = trainer_class(
        model=learned.model,
        args=config(),
        processing_class=learned.tokenizer,
        train_dataset=Dataset.from_list([asdict(each) for each in examples]),
    )
    before = _accuracy(learned, measured)
    running.train()
    running.save_model(target)
    if running.is_world_process_zero():
        after = _accuracy(LearnedReward(running.model.eval(), learned.tokenizer), measured)
        results = {"held_out_accuracy_before": before, "held_out_accuracy_after": after}
        (Path(target) / "results.json").write_text(json.dumps(results) + "\n")


def _accuracy(learned: LearnedReward, examples: Sequence[Pair | Steps]) -> float | None:
    """Return the share of pairs whose better response has the higher score; None without an example.

    Of steps: the share with P(right) > ½ exactly where the label is right.
    """
    hits = list[bool]()
    for each in examples:
        if isinstance(each, Pair):
            hits.append(learned.score(each.prompt, each.chosen) > learned.score(each.prompt, each.rejected))
        else:
            ends = [*accumulate(map(len, each.completions))]
            scores = learned.scores_of_steps(each.prompt, "".join(each.completions), ends)
            hits += [(score > 0.5) == label for score, label in zip(scores, each.labels, strict=True)]
    return sum(hits) / len(hits) if hits else None


def of_trl(trainer: dict[str, Any], *, steps: bool, output_dir: str, seed: int) -> tuple[Any, partial[Any]]:
    """Return TRL's trainer of pairs or of steps, and its settings: our defaults, overridden by the user's.

    TypeError if the user's have ``step_separator``, for a step of ours ends where the rule says.
    """
    fields = {
        **{"output_dir": output_dir, "seed": seed, "report_to": "none", "save_strategy": "no"},
        **{"max_length": None, "num_train_epochs": 1},
        **dict.fromkeys(("bf16", "gradient_checkpointing"), torch.accelerator.is_available()),
    }
    if steps:
        from trl.experimental.prm import PRMConfig, PRMTrainer

        return PRMTrainer, partial(PRMConfig, **fields | trainer, step_separator="")
    from trl import RewardConfig, RewardTrainer

    return RewardTrainer, partial(RewardConfig, **{**fields, "center_rewards_coefficient": 0.01, **trainer})


if __name__ == "__main__":
    train_reward_model(**json.loads(Path(sys.argv[1]).read_text()))
