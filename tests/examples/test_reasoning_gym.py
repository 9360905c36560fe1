"""Test tasks of reasoning-gym as data for verl, and their own verifiers as the reward."""

import json
import math
import random
import re
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import reasoning_gym_data as gym
import reasoning_gym_reward as reward
from reasoning_gym_check import EXAMPLES, lines_of
from reasoning_gym_data import GymSettings

from grpo_verl_ext.tasks.folders import SYSTEM_PROMPT, PreparedFolder, PreparedFolderError

TASKS = {
    "chain_sum": {"max_terms": 3, "max_digits": 1},
    # its verifier compares with tuples, which JSON has not
    "rearc": {"rng_difficulty_weights": [1, 0, 0, 0, 0, 0, 0]},
    "gsm_symbolic": {},  # some of its numbers are fractions, which JSON has not
    "spell_backward": {"min_word_len": 9, "max_word_len": 9},  # nine ninths are 1.0000000000000002
}
WRONG = "<reasoning>none</reasoning><answer>nothing of the kind</answer>"


def settings(task: str, **changes: Any) -> GymSettings:
    values = {"config": TASKS.get(task, {}), "train": 8, "test": 4, "seed": 1, "system": SYSTEM_PROMPT}
    return GymSettings(task=task, **(values | changes))


def drawn(folder: Path, of: GymSettings) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    folder.mkdir()
    gym.write_task(folder, vars(of))
    train, test = (pq.read_table(folder / f"{split}.parquet").to_pylist() for split in ("train", "test"))
    return train, test


def scored(row: dict[str, Any], text: str) -> dict[str, float]:
    truth = row["reward_model"]["ground_truth"]
    return reward.compute_score(row["data_source"], text, truth, row["extra_info"])


class Fake:
    """In the place of a task's dataset: entries by their index, and a verifier."""

    def __init__(
        self, entry: Callable[[int], dict[str, Any]], score: Callable[[str, dict[str, Any]], float]
    ) -> None:
        self.entry, self.score_answer = entry, score

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"question": str(index), "answer": "7", "metadata": {}} | self.entry(index)


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    return lambda *of: monkeypatch.setattr(gym, "make_dataset", lambda *_, **__: Fake(*of))


@pytest.mark.parametrize("task", TASKS)
def test_the_right_answer_has_the_verifiers_best(task: str, tmp_path: Path) -> None:
    train, test = drawn(tmp_path / "rows", settings(task))
    assert (len(train), len(test)) == (8, 4)
    for row in (*train, *test):
        answer = row["reward_model"]["ground_truth"]
        right = scored(row, f"{WRONG}<answer>\n{answer}\n</answer>")
        assert right == {"score": 1.0, "acc": 1.0, "verifier_raised": 0.0}
        wrong = scored(row, WRONG)
        assert wrong["score"] < 1.0
        assert wrong["acc"] == 0.0
        assert scored(row, f"<answer>{answer}!!</answer>")["score"] <= 1.0


def test_no_question_comes_twice_nor_with_the_neighbouring_seed(tmp_path: Path) -> None:
    """reasoning-gym gives entry i the seed + i: seeds 1 and 2 as they are would share all but one."""
    train, test = drawn(tmp_path / "one", settings("countdown"))
    others, _ = drawn(tmp_path / "two", settings("countdown", seed=2))
    questions = [row["prompt"][-1]["content"] for row in (*train, *test, *others)]
    assert len(set(questions)) == 8 + 4 + 8


def test_tasks_that_use_the_global_random_numbers_follow_the_seed(tmp_path: Path, use: Any) -> None:
    use(lambda _: {"question": f"{random.random()} {np.random.random()}"}, lambda *_: 1.0)
    first, again, other = (
        drawn(tmp_path / f"{n}", settings("gcd", seed=seed)) for n, seed in enumerate((1, 1, 2))
    )
    assert first == again
    assert first != other


def test_the_test_set_does_not_depend_on_the_size_of_the_training_set(tmp_path: Path) -> None:
    _, test = drawn(tmp_path / "few", settings("chain_sum"))
    _, same = drawn(tmp_path / "more", settings("chain_sum", train=20))
    assert test == same


def test_a_row_is_as_verl_reads_it(tmp_path: Path) -> None:
    (row, *_), _ = drawn(tmp_path / "rows", settings("chain_sum"))
    assert row["data_source"] == "reasoning_gym/chain_sum"
    assert [message["role"] for message in row["prompt"]] == ["system", "user"]
    assert row["prompt"][0]["content"] == SYSTEM_PROMPT
    entry = json.loads(row["extra_info"]["entry"])
    assert row["prompt"][1]["content"] == entry["question"]
    assert row["reward_model"] == {"style": "rule", "ground_truth": entry["answer"]}
    (bare, *_), _ = drawn(tmp_path / "bare", settings("chain_sum", system=""))
    assert bare["prompt"] == row["prompt"][1:]
    told = reward.score_whole_response("", f" {entry['answer']}\n", entry["answer"], row["extra_info"])
    assert (told["score"], told["acc"]) == (1.0, 1.0)
    assert scored(row, entry["answer"])["score"] == 0.0


@pytest.mark.parametrize(
    ("answers", "said"), [({}, "KeyError"), ({None: math.nan}, "ValueError: the score nan")], ids=str
)
def test_a_verifier_that_raises_or_says_no_number_is_named_once_and_counted(
    answers: dict[None, float],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As it would be the reward, and its group's mean NaN."""
    (row, *_), _ = drawn(tmp_path / "rows", settings("gcd"))
    monkeypatch.setattr(reward, "_verifier", lambda *_: lambda *_: answers[None])
    monkeypatch.setattr(reward, "_said", set())
    for _ in range(2):
        assert scored(row, WRONG) == {"score": 0.0, "acc": 0.0, "verifier_raised": 1.0}
    assert capsys.readouterr().err.count(f"verifier of gcd raised {said}") == 1


def test_a_verifier_that_raises_for_the_tasks_own_answer_stops_the_preparation(
    tmp_path: Path, use: Any
) -> None:
    use(lambda _: {}, lambda answer, _: 1 / (int(answer) - 7))
    with pytest.raises(gym.DrawError, match=r"verifier of gcd raised ZeroDivisionError: .* own answer '7'"):
        gym.write_task(tmp_path, vars(settings("gcd")))


LEFT_OUT = {
    # entries 0 … 4: not best, taken, taken, the same question again, taken
    "not best, or again": (
        lambda index: {"question": str(index // 2), "metadata": {"right": index % 3 > 0}},
        lambda _, entry: float(entry["metadata"]["right"]),
        (1, 1),
    ),
    # A row keeps the entry as JSON, which makes numpy's numbers Python's: every other one is left out.
    "another entry than a row keeps": (
        lambda index: {"metadata": {"number": 7 if index % 2 else np.int64(7)}},
        lambda _, entry: float(
            type(entry["metadata"]["number"]) is (int if int(entry["question"]) % 2 else np.int64)
        ),
        (0, 3),
    ),
    # The reward strips what stands between the tags.
    "another answer than the reward reads": (
        lambda index: {"answer": "7" if index % 2 else " 7"},
        lambda answer, entry: float(answer == entry["answer"]),
        (0, 3),
    ),
}


@pytest.mark.parametrize("case", LEFT_OUT)
def test_entries_whose_own_answer_is_not_the_best_are_left_out_and_counted(
    case: str, tmp_path: Path, use: Any
) -> None:
    *of, counts = LEFT_OUT[case]
    use(*of)
    left_out = gym.write_task(tmp_path, vars(settings("gcd", train=2, test=1)))["left_out"]
    assert (left_out[gym.REPEATED], left_out[gym.NOT_BEST]) == counts


OTHER_ANSWERS: list[tuple[Any, Any, int, int]] = [
    (lambda index: str(index // 6), lambda *_: 1.0, 12, 12),
    (lambda _: None, lambda *_: 1.0, 12, 12),
    (str, lambda answer, entry: float(answer in (entry["answer"], "9", "10", "11")), 12, 3),
    (str, lambda answer, entry: float(answer == entry["answer"] or int(answer) > 15), 20, 4),
    (lambda index: ("Yes", "yes ")[index % 2], lambda *_: 1.0, 0, 0),
]


@pytest.mark.parametrize(("answer_of_entry", "score", "tried", "full"), OTHER_ANSWERS)
def test_many_other_rows_answers_with_the_full_reward_need_an_option(
    *, answer_of_entry: Any, score: Any, tried: int, full: int, tmp_path: Path, use: Any
) -> None:
    use(lambda index: {"answer": answer_of_entry(index)}, score)
    of = vars(settings("gcd", train=max(tried, 12) - 4))
    if full == 12:
        with pytest.raises(gym.DrawError, match=r"gcd: .* 12 of 12 rows\. .* --accept-other-answers"):
            gym.write_task(tmp_path, of)
    found = gym.write_task(tmp_path, of, accept_other_answers=full == 12)["verifier"]["gcd"]
    assert (found["tried"], found["full"]) == (tried, full)


@pytest.mark.parametrize("task", ["rush_hour", "boxnet", "graph_color", "propositional_logic", "rubiks_cube"])
def test_a_task_without_answers_is_named_and_its_examples_are_tried(task: str, tmp_path: Path) -> None:
    found = gym.write_task(tmp_path, vars(settings(task)), accept_other_answers=True)["verifier"]
    assert lines_of(found)[0].startswith(f"{task} has no answer in 12 of 12 rows")
    assert (found[task]["full"] > 3) == (task == "propositional_logic")
    (row, *_) = pq.read_table(tmp_path / "train.parquet").to_pylist()
    metadata = reward.from_exact_text(row["extra_info"]["entry"])["metadata"]
    example = EXAMPLES.get(task, lambda _: "")(metadata)
    assert scored(row, f"<answer>{example}</answer>")["acc"] == float(task in EXAMPLES)


def test_rows_of_another_origin_are_refused() -> None:
    with pytest.raises(ValueError, match=r"a row has no extra_info\.task; valid are rows that"):
        reward.compute_score("gsm8k", WRONG, "1", {"index": 3})


@pytest.mark.parametrize(
    ("of", "message"),
    [
        (settings("chain_summ"), "--task is 'chain_summ'; valid are ab, "),
        (settings("chain_sum", config={"max_term": 3}), "--config is 'max_term'; valid are allow_neg"),
        (settings("chain_sum", config={"max_terms": 0}), "refuses .*: max_terms must be >= min_terms"),
        (settings("gcd", config={"max_value": date(2026, 1, 1)}), "date is not JSON serializable"),
    ],
    ids=["task", "option", "value", "date"],
)
def test_what_the_library_does_not_know_is_named_with_what_it_does(
    of: GymSettings, message: str, tmp_path: Path
) -> None:
    with pytest.raises(PreparedFolderError, match=message):
        gym.prepare_reasoning_gym(of, tmp_path / "folder", force=False)
    assert not (tmp_path / "folder").exists()


def test_a_task_with_fewer_questions_says_how_many(tmp_path: Path) -> None:
    one_digit = {"min_terms": 1, "max_terms": 1, "max_digits": 1}
    with pytest.raises(gym.DrawError, match=r"gave 10 different questions in 1120 draws; .* ask for 12\."):
        gym.write_task(tmp_path, vars(settings("chain_sum", config=one_digit)))


def test_prepare_gives_the_same_bytes_whatever_the_hashes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Questions of ransom_note depend on the order of a set; the verifier of bf prints."""
    tasks = ("bf", "game_of_life_halting", "ransom_note")
    mixed = [{"name": task, "weight": 1, "config": {}} for task in tasks]
    for name in ("1", "2"):
        monkeypatch.setenv("PYTHONHASHSEED", name)
        command = f"gym.py --task composite --train 12 --test 4 --folder {tmp_path / name}"
        command += " --accept-other-answers --config"
        monkeypatch.setattr(sys, "argv", [*command.split(), f"datasets={json.dumps(mixed)}"])
        gym.main()
        said = rf"made: {tmp_path / name}\n  12 training and 4 test .*{tasks[1]}: .* in (\d+) of \1 rows"
        assert re.search(said, capsys.readouterr().out, re.S)
    first, second = (PreparedFolder(tmp_path / name).check() for name in ("1", "2"))
    assert first == second
    assert first["settings"]["config"] == {"datasets": mixed}
    assert first["sha256"].keys() == {"train.parquet", "test.parquet"}
    assert first["found"]["verifier"].keys() == {*tasks}
    (row, *_) = pq.read_table(tmp_path / "1" / "test.parquet").to_pylist()
    assert scored(row, f"<answer>{row['reward_model']['ground_truth']}</answer>")["acc"] == 1.0
