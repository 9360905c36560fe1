"""Train a process reward model with TRL, in a process of its own: ``python -m … JOB.json``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from grpo_verl_ext.iterate.preferences import read_examples
from grpo_verl_ext.iterate.reward_training import RewardJob, common_config, train_and_measure
from grpo_verl_ext.iterate.step_examples import Steps

Scores = Callable[[str, Sequence[str]], list[float]]
"""(prompt, its response in steps) → P(right) of each step."""


def main(job: RewardJob) -> None:
    """Train and save the model, and measure it on the held-out steps before and after."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForTokenClassification, AutoTokenizer, set_seed
    from trl.experimental.prm import PRMConfig, PRMTrainer

    from grpo_verl_ext.rewards.learned_steps import OUTPUTS, LearnedStepReward

    def accuracy() -> float | None:
        learned = LearnedStepReward(trainer.model.eval(), tokenizer)
        return step_accuracy(learned.scores_of_pieces, held_out)

    tokenizer = AutoTokenizer.from_pretrained(job.start)
    set_seed(job.seed)  # a new head is drawn when the model is loaded
    model = AutoModelForTokenClassification.from_pretrained(
        job.start, num_labels=OUTPUTS, dtype=torch.float32
    )
    train, held_out = (read_examples(Path(file), Steps) for file in (job.train, job.held_out))
    trainer = PRMTrainer(
        model=model,
        args=PRMConfig(**step_reward_config(job.trainer, output_dir=job.target, seed=job.seed)),
        processing_class=tokenizer,
        train_dataset=Dataset.from_list([asdict(example) for example in train]),
    )
    train_and_measure(trainer, accuracy, job.target, held_out_steps_right=share_right(held_out))


def step_reward_config(trainer: dict[str, Any], *, output_dir: str, seed: int) -> dict[str, Any]:
    """Return the fields of TRL's ``PRMConfig``: our defaults, overridden by the user's.

    The separator is empty, since a step of ours ends where the rule says.
    """
    return {**common_config(output_dir=output_dir, seed=seed), "step_separator": "", **trainer}


def step_accuracy(scores: Scores, examples: Sequence[Steps]) -> float | None:
    """Return the share of steps with P(right) > ½ exactly where the label is right; None without a step."""
    hits = [
        (score > 0.5) == label
        for example in examples
        for score, label in zip(scores(example.prompt, example.completions), example.labels, strict=True)
    ]
    return sum(hits) / len(hits) if hits else None


def share_right(examples: Sequence[Steps]) -> float | None:
    """Return the share of right steps, by which to judge an accuracy; None without a step."""
    labels = [label for example in examples for label in example.labels]
    return sum(labels) / len(labels) if labels else None


if __name__ == "__main__":
    main(RewardJob(**json.loads(Path(sys.argv[1]).read_text())))
