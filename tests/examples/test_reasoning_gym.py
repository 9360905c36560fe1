"""Test tasks of reasoning-gym as data for verl, and their own verifiers as the reward."""

import json
import math
import random
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
from reasoning_gym_data import GymSettings

from grpo_verl_ext.tasks.folders import SYSTEM_PROMPT, PreparedFolder, PreparedFolderError

TASKS = {
    "chain_sum": {"max_terms": 3, "max_digits": 1},
    # its verifier compares with tuples, which JSON has not
    "rearc": {"rng_difficulty_weights": [1, 0, 0, 0, 0, 0, 0]},
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


def test_entries_with_fractions_are_rows_too(tmp_path: Path) -> None:
    """gsm_symbolic keeps some of its numbers as fractions, which plain JSON has not."""
    train, test = drawn(tmp_path / "rows", settings("gsm_symbolic", train=64, test=32))
    entries = [row["extra_info"]["entry"] for row in (*train, *test)]
    assert any("__fraction__" in entry for entry in entries)
    for row in (*train, *test):
        assert scored(row, f"<answer>{row['reward_model']['ground_truth']}</answer>")["acc"] == 1.0


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
    left_out = gym.write_task(tmp_path, vars(settings("gcd", train=2, test=1)))
    assert (left_out[gym.REPEATED], left_out[gym.NOT_BEST]) == counts


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


def test_a_mixture_of_tasks(tmp_path: Path) -> None:
    mixed = {"datasets": [{"name": name, "weight": 1, "config": {}} for name in ("gcd", "lcm")]}
    train, test = drawn(tmp_path / "mixed", settings("composite", config=mixed))
    sources = {json.loads(row["extra_info"]["entry"])["metadata"]["source_dataset"] for row in train}
    assert sources == {"gcd", "lcm"}
    assert scored(test[0], f"<answer>{test[0]['reward_model']['ground_truth']}</answer>")["acc"] == 1.0


def test_prepare_gives_the_same_bytes_whatever_the_hashes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Questions of ransom_note depend on the order of a set."""
    for name in ("1", "2"):
        monkeypatch.setenv("PYTHONHASHSEED", name)
        command = f"gym.py --task ransom_note --train 3 --test 2 --folder {tmp_path / name}"
        monkeypatch.setattr(sys, "argv", [*command.split(), "--config", "max_note_length=6"])
        gym.main()
        assert f"made: {tmp_path / name}\n  3 training and 2 test prompts" in capsys.readouterr().out
    first, second = (PreparedFolder(tmp_path / name).check() for name in ("1", "2"))
    assert first == second
    assert first["settings"]["config"] == {"max_note_length": 6}
    assert first["sha256"].keys() == {"train.parquet", "test.parquet"}
