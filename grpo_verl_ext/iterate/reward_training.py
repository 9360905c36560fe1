"""Train a reward model with TRL, in a process of its own: ``python -m … JOB.json``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from grpo_verl_ext.iterate.examples import Pair, Steps, read_examples

RESULTS = "results.json"
"""File in the folder of the trained model."""

_Scores = Callable[[str, Sequence[str]], list[float]]
"""(prompt, its response in steps) → P(right) of each step."""


@dataclass(frozen=True)
class RewardJob:
    """The content of the job file that the process reads; paths are strings, for JSON.

    Attributes:
        start: model to train further; one without a score head gets a new one, drawn by the seed.
        train: file of pairs, or of steps.
        held_out: file of the same; may be empty.
        trainer: fields of TRL's ``RewardConfig``, or of its ``PRMConfig``.
        steps: whether the model is a classifier of steps, and not one that orders responses.
    """

    start: str
    train: str
    held_out: str
    target: str
    seed: int
    trainer: dict[str, Any]
    steps: bool = False


def train_reward_model(job: RewardJob) -> None:
    """Train and save the model, and measure it on the held-out examples before and after."""
    from datasets import Dataset
    from transformers import AutoTokenizer, set_seed

    kind: type[Any] = Steps if job.steps else Pair
    train, held_out = (read_examples(Path(file), kind) for file in (job.train, job.held_out))
    tokenizer = AutoTokenizer.from_pretrained(job.start)
    set_seed(job.seed)  # a new head is drawn when the model is loaded
    trainer = (_step_trainer if job.steps else _pair_trainer)(
        job, processing_class=tokenizer, train_dataset=Dataset.from_list([asdict(each) for each in train])
    )
    accuracy = _step_accuracy_of if job.steps else _pair_accuracy_of
    before = accuracy(trainer.model.eval(), tokenizer, held_out)
    trainer.train()
    trainer.save_model(job.target)
    if trainer.is_world_process_zero():
        after = accuracy(trainer.model.eval(), tokenizer, held_out)
        results = {"held_out_accuracy_before": before, "held_out_accuracy_after": after}
        more = {"held_out_steps_right": share_right(held_out)} if job.steps else {}
        (Path(job.target) / RESULTS).write_text(json.dumps(results | more) + "\n")


def _pair_trainer(job: RewardJob, **data: Any) -> Any:
    import torch
    from transformers import AutoModelForSequenceClassification
    from trl import RewardConfig, RewardTrainer

    model = AutoModelForSequenceClassification.from_pretrained(job.start, num_labels=1, dtype=torch.float32)
    return RewardTrainer(model=model, args=RewardConfig(**_fields_of(job)), **data)


def _step_trainer(job: RewardJob, **data: Any) -> Any:
    import torch
    from transformers import AutoModelForTokenClassification
    from trl.experimental.prm import PRMConfig, PRMTrainer

    from grpo_verl_ext.rewards.learned import OUTPUTS

    model = AutoModelForTokenClassification.from_pretrained(
        job.start, num_labels=OUTPUTS, dtype=torch.float32
    )
    return PRMTrainer(model=model, args=PRMConfig(**_fields_of(job)), **data)


def _fields_of(job: RewardJob) -> dict[str, Any]:
    return trainer_fields(job.trainer, steps=job.steps, output_dir=job.target, seed=job.seed)


def trainer_fields(trainer: dict[str, Any], *, steps: bool, output_dir: str, seed: int) -> dict[str, Any]:
    """Return the fields of TRL's ``RewardConfig`` or ``PRMConfig``: our defaults, overridden by the user's.

    The separator of steps is empty, since a step of ours ends where the rule says.
    """
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
        **({"step_separator": ""} if steps else {"center_rewards_coefficient": 0.01}),
        **trainer,
    }


def _pair_accuracy_of(model: Any, tokenizer: Any, pairs: Sequence[Pair]) -> float | None:
    from grpo_verl_ext.rewards.learned import LearnedReward

    prompts, better, worse = ([getattr(pair, name) for pair in pairs] for name in Pair.__annotations__)
    return LearnedReward(model, tokenizer).accuracy(prompts, better, worse) if pairs else None


def _step_accuracy_of(model: Any, tokenizer: Any, examples: Sequence[Steps]) -> float | None:
    from grpo_verl_ext.rewards.learned import LearnedStepReward

    return step_accuracy(LearnedStepReward(model, tokenizer).scores_of_pieces, examples)


def step_accuracy(scores: _Scores, examples: Sequence[Steps]) -> float | None:
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
    train_reward_model(RewardJob(**json.loads(Path(sys.argv[1]).read_text())))
