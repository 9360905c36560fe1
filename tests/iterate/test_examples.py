"""Test examples of pairs and of steps: how they are made, held out, replayed, and collected in a round."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from grpo_verl_ext.iterate.examples import Pair, Rule, Steps, split_by_prompt, write_examples
from grpo_verl_ext.iterate.rounds import PARTS
from grpo_verl_ext.iterate.settings import IterateError, IterateSettings, Round
from grpo_verl_ext.rewards.steps import compute_score
from grpo_verl_ext.runs.verl_run import CorruptFileError, Response

repeatable = hypothesis_settings(derandomize=True, deadline=None, max_examples=100)


def response(prompt: str, output: str, score: float = 0.0, step: int = 1, truth: object = None) -> Response:
    return Response("u", prompt, output, truth, score, step)


def pairs_of(responses: list[Response], **how: int) -> list[Pair]:
    """With their own scores as labels."""
    scores = iter(each.score for each in responses)
    return Pair.made(responses, lambda output, truth: next(scores), **how)


class TestPairs:
    def test_by_hand(self) -> None:
        """Labels of one text may differ, as of a rule that draws lots: it is no pair."""
        responses = [
            *(response("p", "good", 2.0), response("p", "fair", 1.0), response("p", "fair", 1.0)),
            *(response("q", "good", 2.0), response("q", "good", 1.0), response("p", "bad", 0.0, step=2)),
        ]
        assert pairs_of(responses, per_prompt=9, seed=1) == [Pair("p", "good", "fair")]

    @given(
        labels=st.lists(st.integers(0, 3), min_size=1, max_size=8), most=st.integers(1, 4), seed=st.integers()
    )
    @repeatable
    def test_the_better_is_chosen_and_no_prompt_has_too_many(self, labels, most, seed) -> None:
        responses = [response("p", f"{i}", float(label)) for i, label in enumerate(labels)]
        pairs = pairs_of(responses, per_prompt=most, seed=seed)
        assert all(labels[int(pair.chosen)] > labels[int(pair.rejected)] for pair in pairs)
        every = sum(a > b for a in labels for b in labels)
        assert len(pairs) == len(set(pairs)) == min(most, every)
        assert pairs == pairs_of(responses, per_prompt=most, seed=seed)

    def test_another_seed_draws_other_pairs(self) -> None:
        responses = [response("p", f"{i}", float(i)) for i in range(8)]
        assert pairs_of(responses, per_prompt=3, seed=1) != pairs_of(responses, per_prompt=3, seed=2)

    def test_one_prompt_with_two_truths_is_two_prompts(self) -> None:
        """Its responses are labelled by both: the same text is right by one and wrong by the other."""
        responses = [response("p", each, truth=truth) for truth in "45" for each in "45"]
        pairs = Pair.made(responses, lambda output, truth: float(output == truth), per_prompt=9, seed=1)
        assert sorted((pair.chosen, pair.rejected) for pair in pairs) == [("4", "5"), ("5", "4")]

    def test_a_rule_has_to_return_a_number(self) -> None:
        scores = {"good": {"score": 2}, "bad": 1}
        two = [response("p", output) for output in scores]
        assert Pair.made(two, lambda output, truth: scores[output], per_prompt=9, seed=1)
        with pytest.raises(IterateError, match=r"reward_model\.label returned 'good'"):
            Pair.made([response("p", "o")], lambda output, truth: "good", per_prompt=9, seed=1)


def by_semicolons(solution_str: str, ground_truth: object, **_: object) -> dict[str, Any]:
    """A step ends with a semicolon, and is right if it has the truth."""
    ends = [place + 1 for place, sign in enumerate(solution_str) if sign == ";"]
    steps = [solution_str[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    return {"step_rewards": [float(str(ground_truth) in step) for step in steps], "step_ends": ends}


def steps_of(rule: Rule, prompt: str, output: str, truth: object) -> Steps:
    (steps,) = Steps.made([response(prompt, output, truth=truth)], rule, per_prompt=1, seed=1)
    return steps


class TestSteps:
    def test_by_hand(self) -> None:
        rollouts = [
            *(response("p", "a;b;rest", truth=truth) for truth in "aab"),
            *(response("p", "no step", truth="a"), response("p", "xa;", truth="a", step=2)),
        ]
        assert Steps.made(rollouts, by_semicolons, per_prompt=9, seed=1) == [
            Steps("p", ["a;", "b;"], [True, False]),
            Steps("p", ["a;", "b;"], [False, True]),
            Steps("p", ["xa;"], [True]),
        ]

    def test_no_prompt_has_too_many_and_the_seed_draws(self) -> None:
        rollouts = [response("p", f"{letter};", truth="a") for letter in "abcdefgh"]
        how = {"rule": by_semicolons, "per_prompt": 3}
        first, again, other = (Steps.made(rollouts, **how, seed=seed) for seed in (1, 1, 2))
        assert first == again != other
        assert len({example.completions[0] for example in first}) == 3

    @pytest.mark.parametrize(
        ("rewards", "ends", "pieces", "labels"),
        [
            ([1.0, -1.0, 0.5], [4, 2, 6], ["ab", ";c", "d;"], [False, True, True]),
            ([1.0, 0.0, 0.0, 1.0], [2, 2, 4, 4], ["ab", ";c"], [False, True]),
        ],
        ids=["ends in any order", "of steps with one end the last counts"],
    )
    def test_what_a_rule_returns(self, rewards, ends, pieces, labels) -> None:
        said = {"step_rewards": rewards, "step_ends": ends}
        assert steps_of(lambda **_: said, "p", "ab;cd;e", "t") == Steps("p", pieces, labels)

    def test_the_rule_reads_the_prompt(self) -> None:
        """The task's rule takes the terms from it."""
        prompt, text = "user\n1+2+3=?\nassistant\n", "<reasoning>1+2=3;3+3=7;</reasoning>"
        # the text behind the last addition is the answer, which is missing
        pieces = ["<reasoning>1+2=3;", "3+3=7;", "</reasoning>"]
        assert steps_of(compute_score, prompt, text, "6") == Steps(prompt, pieces, [True, False, False])
        with pytest.raises(ValueError, match="has no problem of chain_sum"):
            steps_of(compute_score, "hello", text, "6")

    @pytest.mark.parametrize(
        ("returned", "message"),
        [
            (1.0, r"returned 1\.0; valid is a dictionary with step_rewards and step_ends"),
            ({"step_rewards": [1]}, "valid is a dictionary with"),
            ({"step_rewards": [1], "step_ends": [9]}, "step_ends has 9; valid for this response is 1 … 2"),
        ],
    )
    def test_what_is_not_steps_is_named(self, returned: object, message: str) -> None:
        with pytest.raises(IterateError, match=message):
            steps_of(lambda **_: returned, "p", "ab", "t")


class TestHeldOut:
    def test_a_prompt_is_always_on_one_side(self) -> None:
        pairs = [Pair(f"{i % 50}", f"{i}", "") for i in range(500)]
        train, held_out = split_by_prompt(pairs, held_out=0.3, seed=4)
        assert not {pair.prompt for pair in train} & {pair.prompt for pair in held_out}
        assert Counter(train) + Counter(held_out) == Counter(pairs)
        again, _ = split_by_prompt(pairs[:10], held_out=0.3, seed=4)
        assert set(again) <= set(train)
        assert split_by_prompt(pairs, held_out=0.3, seed=5)[1] != held_out

    def test_the_share_is_that_of_prompts(self) -> None:
        pairs = [Pair(f"{i}", "a", "b") for i in range(4000)]
        _, held_out = split_by_prompt(pairs, held_out=0.2, seed=1)
        # Binomial: 800 ± 25; four standard deviations.
        assert abs(len(held_out) - 800) < 101


text = st.text(max_size=20)
pairs = st.builds(Pair, text, text, text)
steps = st.builds(Steps, text, st.lists(text, max_size=2), st.lists(st.booleans(), max_size=2))


@given(st.lists(pairs, max_size=5) | st.lists(steps, max_size=5))
@repeatable
def test_files_keep_every_character(tmp_path_factory, examples) -> None:
    file = tmp_path_factory.mktemp("examples") / "examples.jsonl"
    write_examples(file, examples)
    assert (type(examples[0]) if examples else Pair).read(file) == examples


def write_rollouts(folder: Path, step: int, outputs: list[str]) -> None:
    """A response to each prompt, ``p0``, …; their truth is ``a``."""
    folder.mkdir(parents=True, exist_ok=True)
    usual = {"gts": "a", "score": 0, "step": step, "uid": "u"}
    rows = [usual | {"input": f"p{i}", "output": output} for i, output in enumerate(outputs)]
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    (folder / f"{step}.jsonl").write_text("".join(lines), encoding="utf-8")


def rounds_of_steps(of: IterateSettings, prompts: int = 40) -> list[Round]:
    """Two rounds with a response to each prompt, of one step."""
    of.policy.steps, of.reward_model.step_label = 1, "a.b"
    rounds = [Round(of, number) for number in (1, 2)]
    for this in rounds:
        write_rollouts(this.run().rollouts, 1, [f"a;{this.number};\u2028"] * prompts)
    return rounds


def collect(this: Round) -> dict[str, Any]:
    return PARTS["pairs"](this, OmegaConf.create({}), by_semicolons)


def test_a_missing_step_is_reported_a_broken_one_named_and_none_at_all_refused(settings) -> None:
    this, second = rounds_of_steps(settings())
    this.settings.policy.steps = 3
    write_rollouts(rollouts := this.run().rollouts, 3, ["a;"])
    assert collect(this)["responses"] == 41
    assert collect(this)["steps_without_rollouts"] == [2]
    (rollouts / "3.jsonl").write_text('{"input": "p"}\n')
    with pytest.raises(CorruptFileError, match=r"3\.jsonl, line 1, is no record"):
        collect(this)
    (second.run().rollouts / "1.jsonl").rename(second.run().rollouts / "9.jsonl")
    with pytest.raises(IterateError, match="has no rollouts of steps 1 … 3"):
        collect(second)


@pytest.mark.parametrize(("share", "drawn"), [(0.1, 10), (0.0, 0), (0.9, 300)])
def test_the_share_that_is_replayed_as_far_as_there_are(settings, tmp_path, share, drawn) -> None:
    """90 new ones and 10 old ones: 10 of 100. Drawn uniformly from all earlier ones, none twice."""
    old = [Steps(f"p{i}", [f"old{i};"], [True]) for i in range(300)]
    write_examples(history := tmp_path / "pairs.jsonl", old)
    nothing_held_out = settings(held_out=1e-9, replay=share, replay_from=str(history))
    (this, _), third = rounds_of_steps(nothing_held_out, prompts=90), Counter[int]()
    draws = []
    for seed in range(30 if share == 0.1 else 1):
        this.seed = seed
        assert collect(this)["replayed"] == drawn
        draws.append({each.completions[0] for each in Steps.read(this.mixture)[90:]})
        assert len(draws[-1]) == drawn
        third.update(int(each[3:-1]) // 100 for each in draws[-1])
    if share == 0.1:
        assert draws[0] != draws[1]
        # 300 draws, a third each: 100 ± 8; four standard deviations.
        assert all(abs(third[part] - 100) < 33 for part in range(3)), third


def test_a_round_replays_from_another_run_but_nothing_that_it_holds_out(settings, tmp_path: Path) -> None:
    old = [Steps(f"p{i}", ["old;"], [True]) for i in range(40)]
    write_examples(first := tmp_path / "pairs.jsonl", old)
    this, second = rounds_of_steps(settings(held_out=0.3, replay=0.9, replay_from=str(first)))
    results = collect(this)

    own, held_out = (Steps.read(file) for file in (this.training_pairs, this.held_out_pairs))
    mixture = Steps.read(this.mixture)
    assert 0 < len(held_out) < 40
    # Nine times the new ones are wanted, more than there are: all of the other run's that may be trained on.
    wanted = [example for example in old if example.prompt not in {each.prompt for each in held_out}]
    assert sorted(map(repr, mixture[len(own) :])) == sorted(map(repr, wanted))
    assert results["replayed"] == len(wanted)
    assert second.replayable == [first, this.training_pairs]
