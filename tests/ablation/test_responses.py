"""What responses say: by hand; read once; corrupt files are named and left."""

import json
import shutil
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

from grpo_verl_ext.ablation.lengths import measure_of
from grpo_verl_ext.ablation.responses import Measure, chosen, read_responses, step_metrics
from grpo_verl_ext.runs.dumps import Response
from grpo_verl_ext.runs.verl_run import VerlRun

CHARACTERS = Measure("characters", len, right_above=0.5)


def response(prompt: str, output: str, score: float) -> Response:
    return Response(f"id of {prompt}", prompt, output, "truth", score, 1)


ROWS = [
    response("a", "four", 1.0),
    response("a", "sixsix", 0.0),
    response("b", "eight888", 0.25),
    response("b", "2²", 0.25),
    response("c", "10 letters", 1.0),
    response("c", "10 letters", 1.0),
]


def test_metrics_of_a_step_by_hand() -> None:
    assert step_metrics(ROWS, CHARACTERS) == {
        # b and c: all the same, wrong or right.
        "responses/groups_without_difference": pytest.approx(2 / 3),
        "responses/right": 0.5,
        # (4 + 10 + 10) / 3 and (6 + 8 + 2) / 3.
        "responses/characters/right": 8,
        "responses/characters/wrong": pytest.approx(16 / 3),
    }


def test_a_length_of_none_is_no_length() -> None:
    found = step_metrics(ROWS[2:4], CHARACTERS)
    assert found["responses/right"] == 0
    assert "responses/characters/right" not in found


def test_nobody_has_said_what_is_right() -> None:
    assert step_metrics(ROWS, Measure("tokens", len, right_above=None)).keys() == {
        "responses/groups_without_difference"
    }


def test_the_same_prompts_are_chosen_whatever_was_answered() -> None:
    first = [response(f"prompt {number}", "yes", 1.0) for number in range(100)]
    other = [response(f"prompt {number}", "no", 0.0) for number in reversed(range(100))]
    assert [row.prompt for row in chosen(first)] == [row.prompt for row in chosen(other)]
    assert len(chosen(first)) == 16


@pytest.fixture
def run(tmp_path: Path) -> VerlRun:
    run = VerlRun(tmp_path / "run", [], steps=2)
    for file, rows in {
        run.rollouts / "1.jsonl": ROWS[:2],
        run.rollouts / "2.jsonl": ROWS[4:],
        run.validation / "2.jsonl": ROWS[:1],
    }.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(as_line(row) + "\n" for row in rows))
    return run


def as_line(row: Response) -> str:
    return json.dumps(
        {
            "input": row.prompt,
            "output": row.output,
            "gts": row.truth,
            "score": row.score,
            "step": row.step,
            "uid": f"{row.prompt_id}_0_0",
        }
    )


def test_what_was_read_outlives_the_dumps(run: VerlRun) -> None:
    read = read_responses(run, CHARACTERS)
    assert (read.metrics[1]["responses/right"], read.metrics[2]["responses/right"]) == (0.5, 1.0)
    assert read.samples == ROWS[:1]
    assert read.troubles == []
    shutil.rmtree(run.rollouts)
    shutil.rmtree(run.validation)
    assert read_responses(run, CHARACTERS) == read
    # Another measure cannot be had any more.
    assert read_responses(run, Measure("tokens", len, right_above=None)) == read


def test_another_measure_reads_the_dumps_again(run: VerlRun) -> None:
    read_responses(run, CHARACTERS)
    assert read_responses(run, Measure("characters", len, right_above=1.0)).metrics[2]["responses/right"] == 0


def test_a_corrupt_dump_is_named_left_and_does_not_take_the_others_with_it(run: VerlRun) -> None:
    file = run.rollouts / "1.jsonl"
    file.write_text("{\n")
    read = read_responses(run, CHARACTERS)
    (trouble,) = read.troubles
    assert "1.jsonl, line 1, is no response" in trouble
    assert file.read_text() == "{\n"
    assert read.metrics.keys() == {2}
    # Mended, it is read.
    file.write_text(as_line(ROWS[0]) + "\n")
    assert read_responses(run, CHARACTERS).metrics.keys() == {1, 2}


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"metrics": {"x": 1}, "samples": [], "measure": []}'])
def test_corrupt_numbers_that_were_kept_are_named_and_left(run: VerlRun, text: str) -> None:
    file = run.folder / "responses.json"
    file.write_text(text)
    (trouble,) = read_responses(run, CHARACTERS).troubles
    assert "responses.json is nothing that `report` kept" in trouble
    assert file.read_text() == text


def test_no_dumps_say_nothing_and_leave_nothing(tmp_path: Path) -> None:
    read = read_responses(VerlRun(tmp_path, [], steps=2), CHARACTERS)
    assert (read.metrics, read.samples, read.troubles) == ({}, [], [])
    assert not list(tmp_path.iterdir())


class TestMeasure:
    @pytest.fixture
    def configured(self, tmp_path: Path) -> Path:
        """A run whose configuration names a model, by interpolation, as Hydra keeps it."""
        file = tmp_path / "run" / "hydra" / ".hydra" / "config.yaml"
        file.parent.mkdir(parents=True)
        file.write_text(
            f"task: {{folder: {tmp_path}}}\n"
            "actor_rollout_ref: {model: {path: '${task.folder}/model'}}\n"
        )
        return tmp_path

    def test_tokens_by_the_tokenizer_of_the_run(self, configured: Path) -> None:
        words = Tokenizer(WordLevel({"?": 0, "one": 1, "two": 2}, unk_token="?"))
        words.pre_tokenizer = Whitespace()
        PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?").save_pretrained(configured / "model")
        measure, word = measure_of(configured / "run", right_above=0.0)
        assert (measure.unit, measure.right_above, word) == ("tokens", 0.0, None)
        assert measure.length("one two  two") == 3

    def test_characters_and_a_word_where_there_is_none(self, configured: Path, tmp_path: Path) -> None:
        measure, word = measure_of(configured / "run", right_above=None)
        assert (measure.unit, measure.length("one two")) == ("characters", 7)
        assert word is not None
        assert word.startswith(f"lengths are in characters, for there is no tokenizer of {tmp_path}/model")
        _, word = measure_of(tmp_path / "nowhere", right_above=None)
        assert word is not None
