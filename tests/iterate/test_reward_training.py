"""Test the reward models of pairs and of steps that TRL trains, on the text that our scorer reads."""

import json
import random
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from grpo_verl_ext.iterate.examples import Pair, Steps, write_examples
from grpo_verl_ext.iterate.reward_training import of_trl, train_reward_model
from grpo_verl_ext.rewards.learned import LearnedReward

Job = dict[str, Any]


def learnable(count: int, seed: int, kind: str) -> list[Pair] | list[Steps]:
    """What ends with the first sign of ``kind`` is better or right, and with the second worse or wrong."""
    rng, (good, bad, *steps) = random.Random(seed), kind
    words = ["".join(rng.choices("abcdef", k=3)) for _ in range(count)]
    prompts = [f"user\n{index % 9}\n" for index in range(count)]
    if not steps:
        return [Pair(prompt, word + good, word + bad) for prompt, word in zip(prompts, words, strict=True)]
    labels = [rng.choices([True, False], k=3) for _ in words]
    return [
        Steps(prompt, [word + (good if label else bad) for label in each], each)
        for prompt, word, each in zip(prompts, words, labels, strict=True)
    ]


@pytest.fixture(params=["!?", "!?-steps", "?!-steps"])
def job(request: pytest.FixtureRequest, tmp_path: Path, policy: Path) -> Job:
    """Of steps with both signs: of one the head that was drawn knows at most half."""
    for name, count, seed in (("train", 160, 1), ("held_out", 40, 2)):
        write_examples(tmp_path / f"{name}.jsonl", learnable(count, seed, request.param))
    return {
        "start": str(policy),
        "train": str(tmp_path / "train.jsonl"),
        "held_out": str(tmp_path / "held_out.jsonl"),
        "target": str(tmp_path / "model"),
        "seed": 5,  # with it the untrained score prefers the wrong responses
        "trainer": {"learning_rate": 3e-3, "num_train_epochs": 3, "disable_tqdm": True},
        "steps": request.param.endswith("steps"),
    }


def few(job: Job, **other: object) -> Job:
    return job | {"trainer": job["trainer"] | {"max_steps": 2}} | other


def trained(job: Job) -> dict[str, float]:
    train_reward_model(**job)
    results: dict[str, float] = json.loads((Path(job["target"]) / "results.json").read_text())
    return results


def test_it_learns_the_labels_and_goes_on_from_there(job: Job, tmp_path: Path) -> None:
    results = trained(job)
    assert results["held_out_accuracy_after"] > 0.9
    assert results["held_out_accuracy_before"] < 0.9

    learned = LearnedReward.load(job["target"], of_steps=job["steps"])
    if job["steps"]:
        held_out = Steps.read(Path(job["held_out"]))[0]
        response, ends = "".join(held_out.completions), [*accumulate(map(len, held_out.completions))]
        scores = learned.scores_of_steps(held_out.prompt, response, ends)
        assert [score > 0.5 for score in scores] == held_out.labels
    else:
        assert learned.score("user\n1\n", "abc!") > learned.score("user\n1\n", "abc?")

    further = trained(few(job, start=job["target"], target=str(tmp_path / "further")))
    assert further["held_out_accuracy_before"] == results["held_out_accuracy_after"]


@pytest.mark.parametrize("job", ["!?", "!?-steps"], indirect=True)
def test_the_same_seed_gives_the_same_weights(job: Job, tmp_path: Path) -> None:
    made = []
    for name, seed in (("one", 5), ("two", 5), ("other", 4)):
        train_reward_model(**few(job, target=str(tmp_path / name), seed=seed))
        made.append((tmp_path / name / "model.safetensors").read_bytes())
    assert made[0] == made[1] != made[2]


@pytest.mark.parametrize("job", ["!?-steps"], indirect=True)
def test_nothing_held_out_measures_nothing(job: Job) -> None:
    Path(job["held_out"]).write_text("")
    assert set(trained(few(job)).values()) == {None}


@pytest.mark.parametrize(
    ("job", "examples", "accuracy"),
    [
        ("!?", [Pair("p", better, worse) for better, worse in ("21", "11", "12")], 1 / 3),
        ("!?-steps", [Steps("p", ["a", "b"], [True, False]), Steps("q", ["c"], [True])], 2 / 3),
    ],
    indirect=["job"],
)
def test_accuracy_is_of_steps_or_of_pairs_whose_ties_are_wrong(job, examples, accuracy, monkeypatch) -> None:
    scores = {"p": [0.9, 0.6], "q": [0.51]}
    monkeypatch.setattr(LearnedReward, "scores_of_steps", lambda self, prompt, *_: scores[prompt])
    monkeypatch.setattr(LearnedReward, "score", lambda self, prompt, response: float(response))
    write_examples(Path(job["held_out"]), examples)
    assert set(trained(few(job)).values()) == {accuracy}


@pytest.mark.parametrize("steps", [False, True])
def test_the_users_fields_win_and_no_text_is_cut_unless_they_say_so(tmp_path: Path, steps: bool) -> None:
    """The scorer reads whole texts; TRL's own default cuts them at 1024 tokens."""
    assert of_trl({}, steps=steps, output_dir="here", seed=5)[1].keywords["max_length"] is None
    _, made = of_trl({"max_length": 7, "learning_rate": 1.0}, steps=steps, output_dir=str(tmp_path), seed=5)
    config = made()
    assert (config.max_length, config.learning_rate, config.seed) == (7, 1.0, 5)
    assert (config.output_dir, getattr(config, "step_separator", "")) == (str(tmp_path), "")
