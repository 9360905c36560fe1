"""Test preference pairs, held-out pairs and replay."""

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_verl_ext.iterate.examples import (
    Pair,
    label_of,
    make_pairs,
    read_examples,
    read_rollouts,
    replayed,
    split_by_prompt,
    write_examples,
)
from grpo_verl_ext.iterate.settings import IterateError
from grpo_verl_ext.runs.dumps import Response

repeatable = settings(derandomize=True, deadline=None, max_examples=100)


def response(prompt: str, output: str, score: float, step: int = 1, truth: object = None) -> Response:
    return Response("u", prompt, output, truth, score, step)


def pairs_of(responses: list[Response], **how: int) -> list[Pair]:
    """With their own scores as labels."""
    scores = iter(each.score for each in responses)
    return make_pairs(responses, lambda output, truth: next(scores), **how)


class TestPairs:
    def test_by_hand(self) -> None:
        responses = [
            *(response("p", "good", 2.0), response("p", "fair", 1.0), response("p", "fair", 1.0)),
            *(response("q", "good", 2.0), response("q", "good", 2.0), response("p", "bad", 0.0, step=2)),
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
        responses = [response("p", each, 0, truth=truth) for truth in "45" for each in "45"]
        pairs = make_pairs(responses, lambda output, truth: float(output == truth), per_prompt=9, seed=1)
        assert sorted((pair.chosen, pair.rejected) for pair in pairs) == [("4", "5"), ("5", "4")]

    def test_labels_of_one_text_that_differ_as_of_a_rule_that_draws_lots(self) -> None:
        assert pairs_of([response("p", "x", 1.0), response("p", "x", 0.0)], per_prompt=9, seed=1) == []

    def test_a_rule_has_to_return_a_number(self) -> None:
        assert label_of({"score": 2}) == 2.0
        with pytest.raises(IterateError, match=r"reward_model\.label returned 'good'"):
            make_pairs([response("p", "o", 0)], lambda output, truth: "good", per_prompt=9, seed=1)


class TestHeldOut:
    def test_a_prompt_is_always_on_one_side(self) -> None:
        pairs = [Pair(f"{i % 50}", f"{i}", "") for i in range(500)]
        train, held_out = split_by_prompt(pairs, held_out=0.3, seed=4)
        assert not {pair.prompt for pair in train} & {pair.prompt for pair in held_out}
        assert Counter(train) + Counter(held_out) == Counter(pairs)
        again, _ = split_by_prompt(pairs[:10], held_out=0.3, seed=4)
        assert set(again) <= set(train)

    def test_the_seed_decides_which_prompts(self) -> None:
        pairs = [Pair(f"{i}", "a", "b") for i in range(50)]
        first, other = (split_by_prompt(pairs, held_out=0.3, seed=seed)[1] for seed in (4, 5))
        assert {pair.prompt for pair in first} != {pair.prompt for pair in other}

    def test_the_share_is_that_of_prompts(self) -> None:
        pairs = [Pair(f"{i}", "a", "b") for i in range(4000)]
        _, held_out = split_by_prompt(pairs, held_out=0.2, seed=1)
        # Binomial: 800 ± 25; four standard deviations.
        assert abs(len(held_out) - 800) < 101
        assert split_by_prompt(pairs, held_out=0.0, seed=1) == (pairs, [])


class TestReplay:
    HISTORY = tuple(Pair(f"{i}", "a", "b") for i in range(300))

    def test_the_share_of_the_mixture(self) -> None:
        # 90 new pairs and 10 old ones: 10 of 100.
        assert len(replayed(90, self.HISTORY, share=0.1, seed=1)) == 10
        assert len(replayed(1, self.HISTORY, share=0.5, seed=1)) == 1
        assert replayed(90, self.HISTORY, share=0.0, seed=1) == []

    def test_no_more_than_there_are_and_none_twice(self) -> None:
        drawn = replayed(10_000, self.HISTORY, share=0.1, seed=1)
        assert sorted(drawn, key=lambda pair: int(pair.prompt)) == list(self.HISTORY)
        assert replayed(90, [], share=0.1, seed=1) == []

    def test_the_seed_decides(self) -> None:
        first = replayed(90, self.HISTORY, share=0.1, seed=1)
        assert first == replayed(90, self.HISTORY, share=0.1, seed=1)
        assert first != replayed(90, self.HISTORY, share=0.1, seed=2)

    def test_it_is_uniform_over_history(self) -> None:
        third = Counter(
            int(pair.prompt) // 100
            for seed in range(300)
            for pair in replayed(90, self.HISTORY, share=0.1, seed=seed)
        )
        # 3000 draws, a third each: 1000 ± 26; four standard deviations.
        assert all(abs(third[part] - 1000) < 104 for part in range(3)), third


text = st.text(max_size=20)


@given(st.lists(st.builds(Pair, text, text, text), max_size=5))
@repeatable
def test_files_keep_every_character(tmp_path_factory, pairs) -> None:
    file = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    write_examples(file, pairs)
    assert read_examples(file, Pair) == pairs


@pytest.mark.parametrize("broken", ["{", '{"prompt": "p"}', '{"prompt": 1, "more": 2}', "[]"])
def test_a_line_that_is_no_pair_is_named(tmp_path: Path, broken: str) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text(json.dumps({"prompt": "p", "chosen": "c", "rejected": "r"}) + "\n" + broken + "\n")
    with pytest.raises(IterateError, match=r"pairs\.jsonl, line 2, is not a pair"):
        read_examples(file, Pair)


class TestRollouts:
    @staticmethod
    def write(folder: Path, step: int, *records: dict[str, object]) -> None:
        rest = {"score": 9, "step": step, "uid": "u_0_0"}
        lines = [json.dumps(record | rest, ensure_ascii=False) + "\n" for record in records]
        (folder / f"{step}.jsonl").write_text("".join(lines), encoding="utf-8")

    def test_the_responses_and_a_missing_step(self, tmp_path: Path) -> None:
        self.write(tmp_path, 1, {"input": "p", "output": "four\u2028", "gts": "4"})
        self.write(tmp_path, 3, {"input": "p", "output": "five", "gts": "5"})
        responses, missing = read_rollouts(tmp_path, 3)
        assert [(each.prompt, each.output, each.truth, each.step) for each in responses] == [
            ("p", "four\u2028", "4", 1),
            ("p", "five", "5", 3),
        ]
        assert missing == [2]

    def test_no_rollouts_at_all(self, tmp_path: Path) -> None:
        with pytest.raises(IterateError, match="has no rollouts of steps 1 … 2"):
            read_rollouts(tmp_path, 2)

    @pytest.mark.parametrize("broken", ['{"input": "p"', '{"input": "p"}', "3"])
    def test_a_broken_line_is_named_and_left(self, tmp_path: Path, broken: str) -> None:
        (tmp_path / "1.jsonl").write_text(broken + "\n")
        with pytest.raises(IterateError, match=r"1\.jsonl, line 1, is no response"):
            read_rollouts(tmp_path, 1)
        assert (tmp_path / "1.jsonl").read_text() == broken + "\n"
