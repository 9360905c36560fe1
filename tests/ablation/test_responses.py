"""Test statistics of responses: by hand; read once; corrupt files are named and left in place."""

import json
import shutil
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from grpo_verl_ext.ablation.running.responses import (
    Measure,
    Responses,
    chosen,
    measure_of,
    measure_of_model,
    read_responses,
    response_metrics,
)
from grpo_verl_ext.ablation.running.results import Results, read_results
from grpo_verl_ext.ablation.statistics.measures import curves_of
from grpo_verl_ext.runs.dumps import Response
from grpo_verl_ext.runs.verl_run import VerlRun

CHARACTERS = Measure("characters", len)


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
    assert response_metrics(ROWS, CHARACTERS, 0.5) == {
        # b and c: all the same, wrong or right.
        "responses/groups_without_difference": pytest.approx(2 / 3),
        "responses/right": 0.5,
        # (4 + 10 + 10) / 3 and (6 + 8 + 2) / 3.
        "responses/characters/right": 8,
        "responses/characters/wrong": pytest.approx(16 / 3),
        # 4 and 6, 8 and 2, 10 and 10: variances of 2, 18 and 0.
        "responses/characters/spread": pytest.approx((20 / 3) ** 0.5),
        # One of two, none, both.
        "responses/pass@1": 0.5,
        "responses/pass@2": pytest.approx(2 / 3),
    }


def test_pass_at_k_up_to_the_fewest_responses_of_a_prompt() -> None:
    # x: one right of eight; y: four of four. pass@4 of x: 1 − C(7, 4)/C(8, 4) = 1 − 35/70.
    rows = [response("x", "", float(i == 0)) for i in range(8)] + [response("y", "", 1.0)] * 4
    found = {name: value for name, value in response_metrics(rows, CHARACTERS, 0.5).items() if "@" in name}
    assert found == {
        "responses/pass@1": pytest.approx((1 / 8 + 1) / 2),
        "responses/pass@2": pytest.approx((1 / 4 + 1) / 2),
        "responses/pass@4": pytest.approx((1 / 2 + 1) / 2),
    }


def test_a_length_of_none_is_no_length() -> None:
    found = response_metrics(ROWS[2:4], CHARACTERS, 0.5)
    assert found["responses/right"] == 0
    assert "responses/characters/right" not in found


def test_nobody_has_said_what_is_right() -> None:
    assert response_metrics(ROWS, CHARACTERS, None).keys() == {
        "responses/groups_without_difference",
        "responses/characters/spread",
    }


def test_one_response_to_a_prompt_has_no_spread() -> None:
    assert "responses/characters/spread" not in response_metrics(ROWS[1:3], CHARACTERS, 0.5)


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


def read(run: VerlRun, measure: Measure = CHARACTERS, right_above: float | None = 0.5) -> Responses:
    return read_responses(run, lambda: measure, right_above=right_above)


def test_what_was_read_outlives_the_dumps(run: VerlRun) -> None:
    first = read(run)
    assert (first.metrics[1]["responses/right"], first.metrics[2]["responses/right"]) == (0.5, 1.0)
    assert first.samples == ROWS[:1]
    assert first.warnings == []
    shutil.rmtree(run.rollouts)
    shutil.rmtree(run.validation)
    assert read(run) == first
    # Another measure cannot be had any more.
    assert read(run, Measure("tokens", len)) == first


@pytest.mark.parametrize("threshold", [None, 1.0])
def test_another_threshold_without_the_dumps_leaves_the_old_shares_out(
    run: VerlRun, threshold: float | None
) -> None:
    first = read(run)
    shutil.rmtree(run.rollouts)
    found = read(run, right_above=threshold)
    assert [list(values) for values in found.metrics.values()] == [
        ["responses/groups_without_difference", "responses/characters/spread"]
    ] * 2
    assert found.samples == first.samples
    (warning,) = found.warnings
    assert "was made with right_above=0.5, and the dumps are gone" in warning


def test_another_measure_reads_the_dumps_again(run: VerlRun) -> None:
    read(run)
    assert read(run, right_above=1.0).metrics[2]["responses/right"] == 0
    # A tokenizer that was not there before: "four" is one word.
    words = Measure("tokens", lambda text: len(text.split()))
    assert read(run, words).metrics[1]["responses/tokens/right"] == 1


def test_tokens_that_were_kept_stand_when_their_tokenizer_has_gone(run: VerlRun) -> None:
    words = Measure("tokens", lambda text: len(text.split()))
    assert read(run, words).metrics == read(run, CHARACTERS).metrics


def test_a_corrupt_dump_is_named_left_and_does_not_take_the_others_with_it(run: VerlRun) -> None:
    file = run.rollouts / "1.jsonl"
    file.write_text("{\n")
    found = read(run)
    (warning,) = found.warnings
    assert "1.jsonl, line 1, is no response" in warning
    assert file.read_text() == "{\n"
    assert found.metrics.keys() == {2}
    # Mended, it is read.
    file.write_text(as_line(ROWS[0]) + "\n")
    assert read(run).metrics.keys() == {1, 2}


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"metrics": {"x": 1}, "samples": [], "measure": []}'])
def test_corrupt_numbers_that_were_kept_are_named_and_left(run: VerlRun, text: str) -> None:
    file = run.folder / "responses.json"
    file.write_text(text)
    (warning,) = read(run).warnings
    assert "responses.json is not what `ablate report` kept" in warning
    assert file.read_text() == text


def test_no_dumps_say_nothing_and_leave_nothing(tmp_path: Path) -> None:
    found = read(VerlRun(tmp_path, [], steps=2))
    assert (found.metrics, found.samples, found.warnings) == ({}, [], [])
    assert not list(tmp_path.iterdir())


def save_words(folder: Path) -> None:
    """A tokenizer of two words."""
    words = Tokenizer(WordLevel({"?": 0, "one": 1, "two": 2}, unk_token="?"))
    words.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?").save_pretrained(folder)


class TestMeasures:
    @pytest.fixture
    def configured(self, tmp_path: Path) -> Path:
        """A run whose configuration names a model, by interpolation, as Hydra keeps it."""
        name_model(tmp_path / "run", tmp_path)
        return tmp_path

    def test_tokens_by_the_tokenizer_of_the_run(self, configured: Path) -> None:
        save_words(configured / "model")
        measure = measure_of(configured / "run", measure_of_model)
        assert (measure.unit, measure.warning) == ("tokens", None)
        assert measure.length("one two  two") == 3

    def test_characters_and_a_word_where_there_is_none(self, configured: Path, tmp_path: Path) -> None:
        measure = measure_of(configured / "run", measure_of_model)
        assert (measure.unit, measure.length("one two")) == ("characters", 7)
        assert measure.warning is not None
        assert measure.warning.startswith(
            f"lengths are in characters, for there is no tokenizer of {tmp_path}/model"
        )
        (configured / "run" / "hydra" / ".hydra" / "config.yaml").write_text("{half")
        corrupt = measure_of(configured / "run", measure_of_model)
        assert corrupt.warning is not None
        assert corrupt.warning.startswith(
            f"lengths are in characters, for there is no tokenizer of {tmp_path}/run"
        )
        nowhere = measure_of(tmp_path / "nowhere", measure_of_model)
        assert nowhere.warning is not None
        assert f"no tokenizer of {tmp_path}/nowhere" in nowhere.warning


def name_model(run: Path, folder: Path) -> None:
    file = run / "hydra" / ".hydra" / "config.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(
        f"task: {{folder: {folder}}}\nactor_rollout_ref: {{model: {{path: '${{task.folder}}/model'}}}}\n"
    )


class TestLoadsOfAReport:
    """A report of four finished runs, of two models."""

    @pytest.fixture
    def folder(self, tmp_path: Path, grid_of, leave) -> Path:
        grid_of(["small", "large"], ["acc"], right_above=0.5)
        for variant, seed in product(["small", "large"], [1, 2]):
            run = leave(variant, seed, {2: {"acc": 1.0}})
            name_model(run, tmp_path / variant)
            (run / "rollouts").mkdir()
            (run / "rollouts" / "2.jsonl").write_text(as_line(response("a", "one two", 1.0)) + "\n")
        return tmp_path

    @pytest.fixture
    def loads(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """Names of the models whose tokenizer was asked for."""
        asked: list[str] = []
        load = AutoTokenizer.from_pretrained

        def counted(model: str, **options: Any) -> Any:
            asked.append(Path(model).parent.name)
            return load(model, **options)

        monkeypatch.setattr(AutoTokenizer, "from_pretrained", counted)
        return asked

    def lengths(self, results: Results, unit: str) -> list[float]:
        return [dict(points)[2] for points in curves_of(results, f"responses/{unit}/right").values()]

    def test_one_of_each_model_and_none_when_lengths_were_kept(self, folder: Path, loads: list[str]) -> None:
        for variant in ("small", "large"):
            save_words(folder / variant / "model")
        assert self.lengths(read_results(folder), "tokens") == [2, 2, 2, 2]
        assert loads == ["small", "large"]
        loads.clear()
        assert self.lengths(read_results(folder), "tokens") == [2, 2, 2, 2]
        assert loads == []

    def test_one_try_where_there_is_no_tokenizer(self, folder: Path, loads: list[str]) -> None:
        results = read_results(folder)
        assert self.lengths(results, "characters") == [7, 7, 7, 7]
        assert loads == ["small", "large"]
        assert all("no tokenizer of" in run.warnings[0] for run in results.runs)
