"""Train a reward model with TRL, in a process of its own: ``python -m … JOB.json``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from grpo_verl_ext.iterate.preferences import Pair, read_examples

RESULTS = "results.json"
"""File in the folder of the trained model."""


@dataclass(frozen=True)
class RewardJob:
    """The content of the job file that the process reads; paths are strings, for JSON.

    Attributes:
        start: model to train further; one without a score head gets a new one, drawn by the seed.
        train: file of pairs.
        held_out: file of pairs; may be empty.
        trainer: fields of TRL's ``RewardConfig``.
    """

    start: str
    train: str
    held_out: str
    target: str
    seed: int
    trainer: dict[str, Any]


def main(job: RewardJob) -> None:
    """Train and save the reward model, and measure it on the held-out pairs before and after."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, set_seed
    from trl import RewardConfig, RewardTrainer

    from grpo_verl_ext.rewards.learned import LearnedReward

    def accuracy() -> float | None:
        learned = LearnedReward(trainer.model.eval(), tokenizer)
        prompts, better, worse = ([getattr(pair, name) for pair in held_out] for name in Pair.__annotations__)
        return learned.accuracy(prompts, better, worse) if held_out else None

    tokenizer = AutoTokenizer.from_pretrained(job.start)
    set_seed(job.seed)  # a new head is drawn when the model is loaded
    model = AutoModelForSequenceClassification.from_pretrained(job.start, num_labels=1, dtype=torch.float32)
    train, held_out = (read_examples(Path(file), Pair) for file in (job.train, job.held_out))
    trainer = RewardTrainer(
        model=model,
        args=RewardConfig(**reward_config(job.trainer, output_dir=job.target, seed=job.seed)),
        processing_class=tokenizer,
        train_dataset=Dataset.from_list([asdict(pair) for pair in train]),
    )
    train_and_measure(trainer, accuracy, job.target)


def train_and_measure(
    trainer: Any, accuracy: Callable[[], float | None], target: str, **found: float | None
) -> None:
    """Train and save the model of a trainer of TRL's, and write `RESULTS` into its folder.

    Args:
        accuracy: measures the model on what is held out; called before and after.
        found: further results.
    """
    before = accuracy()
    trainer.train()
    trainer.save_model(target)
    if trainer.is_world_process_zero():
        results = {"held_out_accuracy_before": before, "held_out_accuracy_after": accuracy(), **found}
        (Path(target) / RESULTS).write_text(json.dumps(results) + "\n")


def reward_config(trainer: dict[str, Any], *, output_dir: str, seed: int) -> dict[str, Any]:
    """Return the fields of TRL's ``RewardConfig``: our defaults, overridden by the user's."""
    common = common_config(output_dir=output_dir, seed=seed)
    return {**common, "center_rewards_coefficient": 0.01, **trainer}


def common_config(*, output_dir: str, seed: int) -> dict[str, Any]:
    """Return our defaults for both of TRL's trainers, of pairs and of steps."""
    import torch

    on_accelerator = torch.accelerator.is_available()
    return {
        "output_dir": output_dir,
        "seed": seed,
        "report_to": "none",
        "save_strategy": "no",
        "max_length": None,
        "num_train_epochs": 1,
        "bf16": on_accelerator,
        "gradient_checkpointing": on_accelerator,
    }


if __name__ == "__main__":
    main(RewardJob(**json.loads(Path(sys.argv[1]).read_text())))
