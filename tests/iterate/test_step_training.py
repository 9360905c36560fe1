"""Test examples of steps from rollouts, and the process reward model that TRL trains on them."""

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from grpo_verl_ext.iterate.examples import (
    Steps,
    make_steps,
    read_examples,
    split_by_prompt,
    steps_of,
    write_examples,
)
from grpo_verl_ext.iterate.reward_training import (
    of_trl,
    step_accuracy,
    train_reward_model,
)
from grpo_verl_ext.iterate.rounds import collect_pairs
from grpo_verl_ext.iterate.settings import (
    IterateError,
    IterateSettings,
    PolicySettings,
    RewardModelSettings,
    Round,
)
from grpo_verl_ext.rewards.learned import LearnedReward
from grpo_verl_ext.rewards.steps import compute_score
from grpo_verl_ext.runs.dumps import Response

Job = dict[str, Any]


def by_semicolons(solution_str: str, ground_truth: object, **_: object) -> dict[str, Any]:
    """A step ends with a semicolon, and is right if it has the truth."""
    ends = [place + 1 for place, sign in enumerate(solution_str) if sign == ";"]
    starts = [0, *ends]
    steps = [solution_str[start:end] for start, end in zip(starts, ends, strict=False)]
    return {"step_rewards": [float(str(ground_truth) in step) for step in steps], "step_ends": ends}


def response(output: str, prompt: str = "p", truth: object = "a", step: int = 1) -> Response:
    return Response("id", prompt, output, truth, 0.0, step)


class TestExamples:
    def test_by_hand(self) -> None:
        rollouts = [
            *(response("a;b;rest"), response("a;b;rest"), response("no step")),
            *(response("a;b;rest", truth="b"), response("xa;", step=2)),
        ]
        assert make_steps(rollouts, by_semicolons, per_prompt=9, seed=1) == [
            Steps("p", ["a;", "b;"], [True, False]),
            Steps("p", ["a;", "b;"], [False, True]),
            Steps("p", ["xa;"], [True]),
        ]

    def test_no_prompt_has_too_many_and_the_seed_draws(self) -> None:
        rollouts = [response(f"{letter};") for letter in "abcdefgh"]
        first, again, other = (
            make_steps(rollouts, by_semicolons, per_prompt=3, seed=seed) for seed in (1, 1, 2)
        )
        assert first == again != other
        assert len({example.completions[0] for example in first}) == 3

    def test_ends_in_any_order(self) -> None:
        def rule(**_: object) -> dict[str, Any]:
            return {"step_rewards": [1.0, -1.0, 0.5], "step_ends": [4, 2, 6]}

        assert steps_of(rule, "p", "ab;cd;e", "t") == Steps("p", ["ab", ";c", "d;"], [False, True, True])

    def test_of_steps_with_one_end_the_last_counts(self) -> None:
        def rule(**_: object) -> dict[str, Any]:
            return {"step_rewards": [1.0, 0.0, 0.0, 1.0], "step_ends": [2, 2, 4, 4]}

        assert steps_of(rule, "p", "ab;c", "t") == Steps("p", ["ab", ";c"], [False, True])

    def test_the_rule_reads_the_prompt(self) -> None:
        """The task's rule takes the terms from it."""
        prompt, text = "user\n1+2+3=?\nassistant\n", "<reasoning>1+2=3;3+3=7;</reasoning>"
        # the text behind the last addition is the answer, which is missing
        pieces = ["<reasoning>1+2=3;", "3+3=7;", "</reasoning>"]
        assert steps_of(compute_score, prompt, text, "6") == Steps(prompt, pieces, [True, False, False])

    @pytest.mark.parametrize(
        ("returned", "message"),
        [
            (1.0, r"returned 1\.0; valid is a dictionary with step_rewards and step_ends"),
            ({"step_rewards": [1], "step_end_tokens": [1]}, "valid is a dictionary with"),
            ({"step_rewards": [1], "step_ends": [9]}, "step_ends has 9; valid for this response is 1 … 2"),
        ],
    )
    def test_what_is_not_steps_is_named(self, returned: object, message: str) -> None:
        with pytest.raises(IterateError, match=message):
            steps_of(lambda **_: returned, "p", "ab", "t")

    def test_files_keep_them_and_a_pair_is_not_one(self, tmp_path: Path) -> None:
        examples = [Steps("p", ["ä\u2028", "b"], [True, False])]
        write_examples(tmp_path / "steps.jsonl", examples)
        assert read_examples(tmp_path / "steps.jsonl", Steps) == examples
        (tmp_path / "steps.jsonl").write_text(json.dumps({"prompt": "p", "chosen": "c"}) + "\n")
        with pytest.raises(IterateError, match="line 1, is not a steps"):
            read_examples(tmp_path / "steps.jsonl", Steps)


def chain_sum(solution_str: str, prompt: str = "user\n1+2+3=?\nassistant\n") -> Mapping[str, Any]:
    return compute_score("", solution_str, "6", {"prompt": prompt})


class TestChainSum:
    def test_the_steps_of_the_problem_in_the_prompt(self) -> None:
        text = "<reasoning>1+2=3;3+3=7;</reasoning><answer>6</answer>"
        assert chain_sum(text) == {
            "score": 1.0,
            "step_rewards": [1.0, 0.0, 1.0],
            "step_ends": [text.index("3+3"), text.index("</r"), len(text)],
        }

    def test_a_prompt_without_a_problem(self) -> None:
        with pytest.raises(ValueError, match="has no problem of chain_sum"):
            chain_sum("", prompt="hello")


def write_rollouts(this: Round) -> None:
    """One response to each of 40 prompts, of one step."""
    this.rollouts.mkdir(parents=True)
    dump = [
        {"input": f"p{i}", "output": f"a;{this.number};", "gts": "a", "score": 0, "step": 1, "uid": "u"}
        for i in range(40)
    ]
    (this.rollouts / "1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in dump))


def test_a_round_collects_replays_and_holds_out(tmp_path: Path) -> None:
    settings = IterateSettings(
        folder=str(tmp_path),
        rounds=2,
        policy=PolicySettings(overrides=[], steps=1),
        reward_model=RewardModelSettings(step_label="a.b", held_out=0.3, replay=0.25),
    )
    rounds = Round(settings, 1), Round(settings, 2)
    for this in rounds:
        write_rollouts(this)
        results = collect_pairs(this, OmegaConf.create({}), by_semicolons)
        assert results["responses"] == results["pairs"] + results["held_out"] == 40
    own = [read_examples(this.training_pairs, Steps) for this in rounds]
    mixture = read_examples(rounds[1].mixture, Steps)
    assert mixture[: len(own[1])] == own[1]
    # A quarter of the mixture: a third of the new ones.
    assert len(mixture) - len(own[1]) == results["replayed"] == round(len(own[1]) / 3)
    assert all(example in own[0] for example in mixture[len(own[1]) :])
    held_out = {example.prompt for example in read_examples(rounds[0].held_out_pairs, Steps)}
    assert not held_out & {example.prompt for example in mixture}


def test_a_round_replays_from_another_run_but_nothing_that_it_holds_out_itself(tmp_path: Path) -> None:
    first = tmp_path / "first" / "pairs.jsonl"
    first.parent.mkdir()
    old = [Steps(f"p{i}", ["old;"], [True]) for i in range(40)]
    write_examples(first, old)
    settings = IterateSettings(
        folder=str(tmp_path),
        rounds=2,
        policy=PolicySettings(overrides=[], steps=1),
        reward_model=RewardModelSettings(step_label="a.b", held_out=0.3, replay=0.9, replay_from=str(first)),
    )
    this = Round(settings, 1)
    write_rollouts(this)
    results = collect_pairs(this, OmegaConf.create({}), by_semicolons)

    own, held_out = (read_examples(file, Steps) for file in (this.training_pairs, this.held_out_pairs))
    mixture = read_examples(this.mixture, Steps)
    assert 0 < len(held_out) < 40
    # Nine times the new ones are wanted, more than there are: all of the other run's that may be trained on.
    wanted = [example for example in old if example.prompt not in {each.prompt for each in held_out}]
    assert sorted(map(repr, mixture[len(own) :])) == sorted(map(repr, wanted))
    assert results["replayed"] == len(wanted)
    assert Round(settings, 2).replayable == [first, this.training_pairs]


def learnable(count: int, seed: int, signs: str = "!?") -> list[Steps]:
    """A step that ends with the first sign is right, one that ends with the second is wrong."""
    rng = random.Random(seed)
    examples = []
    for index in range(count):
        labels = rng.choices([True, False], k=3)
        words = ["".join(rng.choices("abc", k=2)) for _ in labels]
        steps = [f"{word}{signs[not label]}" for word, label in zip(words, labels, strict=True)]
        examples.append(Steps(f"user\n{index % 9}\n", steps, labels))
    return examples


@pytest.fixture
def job(tmp_path: Path, policy: Path) -> Job:
    write_examples(tmp_path / "train.jsonl", learnable(120, seed=1))
    write_examples(tmp_path / "held_out.jsonl", learnable(30, seed=2))
    return {
        "start": str(policy),
        "train": str(tmp_path / "train.jsonl"),
        "held_out": str(tmp_path / "held_out.jsonl"),
        "target": str(tmp_path / "model"),
        "seed": 1,
        "trainer": {"learning_rate": 3e-3, "num_train_epochs": 3, "disable_tqdm": True},
        "steps": True,
    }


def few(job: Job, steps: int, **other: object) -> Job:
    return job | {"trainer": job["trainer"] | {"max_steps": steps}} | other


def trained(job: Job) -> dict[str, float]:
    train_reward_model(**job)
    results: dict[str, float] = json.loads((Path(job["target"]) / "results.json").read_text())
    return results


@pytest.mark.parametrize("signs", ["!?", "?!"])
def test_it_learns_the_labels(job: Job, signs: str) -> None:
    """Of both, whatever the head that was drawn says first: of one it knows at most half."""
    write_examples(Path(job["train"]), learnable(120, seed=1, signs=signs))
    held_out = learnable(30, seed=2, signs=signs)
    write_examples(Path(job["held_out"]), held_out)
    results = trained(job)
    assert results["held_out_accuracy_after"] > 0.95
    assert results["held_out_steps_right"] == sum(sum(each.labels) for each in held_out) / 90
    learned = LearnedReward.load(job["target"], of_steps=True)
    assert step_accuracy(learned.scores_of_pieces, held_out) == results["held_out_accuracy_after"]
    right, wrong = learned.scores_of_steps("user\n1\n", f"ab{signs[0]}ba{signs[1]}", [3, 6])
    assert right > 0.5 > wrong


def test_it_goes_on_from_the_last_model(job: Job, tmp_path: Path) -> None:
    first = trained(few(job, 20))
    second = trained(few(job, 1, start=job["target"], target=str(tmp_path / "further")))
    assert second["held_out_accuracy_before"] == first["held_out_accuracy_after"]


def test_the_same_seed_gives_the_same_weights(job: Job, tmp_path: Path) -> None:
    for name, seed in (("one", 1), ("two", 1), ("other", 2)):
        train_reward_model(**few(job, 1, target=str(tmp_path / name), seed=seed))
    first, second, other = (
        (tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two", "other")
    )
    assert first == second
    assert first != other


def test_nothing_held_out_measures_nothing(job: Job) -> None:
    Path(job["held_out"]).write_text("")
    assert set(trained(few(job, 1)).values()) == {None}


def test_accuracy_counts_steps() -> None:
    examples = [Steps("p", ["a", "b"], [True, False]), Steps("q", ["c"], [True])]
    scores = {"p": [0.9, 0.6], "q": [0.51]}
    assert step_accuracy(lambda prompt, steps: scores[prompt], examples) == pytest.approx(2 / 3)
    assert step_accuracy(lambda prompt, steps: [], []) is None


def test_the_users_fields_win() -> None:
    _, _, config = of_trl({"max_length": 7}, steps=True, output_dir="here", seed=5)
    assert (config["max_length"], config["step_separator"], config["seed"]) == (7, "", 5)


def test_no_text_is_cut_unless_the_user_says_so() -> None:
    assert of_trl({}, steps=True, output_dir="here", seed=5)[2]["max_length"] is None


def test_a_held_out_prompt_stays_on_its_side() -> None:
    train, held_out = split_by_prompt(learnable(50, seed=1), held_out=0.3, seed=1)
    assert not {each.prompt for each in train} & {each.prompt for each in held_out}
    assert train
    assert held_out
