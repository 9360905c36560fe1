"""Test that our scorer uses the model that TRL trains, on the same text."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from reward_pairs import learnable_pairs

from grpo_verl_ext.iterate.examples import write_examples
from grpo_verl_ext.iterate.reward_training import of_trl, train_reward_model
from grpo_verl_ext.rewards.learned import LearnedReward

Job = dict[str, Any]


@pytest.fixture
def job(tmp_path: Path, policy: Path) -> Job:
    write_examples(tmp_path / "train.jsonl", learnable_pairs(160, seed=1))
    write_examples(tmp_path / "held_out.jsonl", learnable_pairs(40, seed=2))
    return {
        "start": str(policy),
        "train": str(tmp_path / "train.jsonl"),
        "held_out": str(tmp_path / "held_out.jsonl"),
        "target": str(tmp_path / "model"),
        "seed": 5,  # with it the untrained score prefers the wrong responses
        "trainer": {"learning_rate": 3e-3, "num_train_epochs": 3, "disable_tqdm": True},
    }


def few(job: Job, steps: int, **other: object) -> Job:
    return job | {"trainer": job["trainer"] | {"max_steps": steps}} | other


def trained(job: Job) -> dict[str, float]:
    train_reward_model(**job)
    results: dict[str, float] = json.loads((Path(job["target"]) / "results.json").read_text())
    return results


def test_it_learns_what_the_pairs_say_and_goes_on_from_there(job: Job, tmp_path: Path) -> None:
    results = trained(job)
    assert results["held_out_accuracy_after"] > 0.9 > results["held_out_accuracy_before"]

    learned = LearnedReward.load(job["target"])
    pairs = learnable_pairs(40, seed=2)
    columns = [[getattr(pair, name) for pair in pairs] for name in ("prompt", "chosen", "rejected")]
    assert learned.accuracy(*columns) == results["held_out_accuracy_after"]

    further = trained(job | {"start": job["target"], "target": str(tmp_path / "further")})
    assert further["held_out_accuracy_before"] == results["held_out_accuracy_after"]


def test_the_same_seed_gives_the_same_weights(job: Job, tmp_path: Path) -> None:
    for name, seed in (("one", 5), ("two", 5), ("other", 4)):
        train_reward_model(**few(job, 3, target=str(tmp_path / name), seed=seed))
    one, two, other = (
        (tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two", "other")
    )
    assert one == two
    assert one != other


def test_nothing_held_out_measures_nothing(job: Job) -> None:
    Path(job["held_out"]).write_text("")
    assert trained(few(job, 1)) == {"held_out_accuracy_before": None, "held_out_accuracy_after": None}


def test_the_users_fields_win() -> None:
    _, _, config = of_trl({"max_length": 7, "learning_rate": 1.0}, steps=False, output_dir="here", seed=5)
    assert (config["max_length"], config["learning_rate"], config["output_dir"], config["seed"]) == (
        7,
        1.0,
        "here",
        5,
    )


def test_no_text_is_cut_unless_the_user_says_so() -> None:
    """The scorer reads whole texts; TRL's own default cuts them at 1024 tokens."""
    assert of_trl({}, steps=False, output_dir="here", seed=5)[2]["max_length"] is None


class TestScores:
    def test_a_tie_counts_for_nothing(self, job: Job) -> None:
        with torch.random.fork_rng():
            train_reward_model(**few(job, 1))
        assert LearnedReward.load(job["target"]).accuracy(["p"], ["same"], ["same"]) == 0
