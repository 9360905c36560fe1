"""Test reading what verl wrote: metrics of several attempts at one run, and dumps of responses."""

import json
import math
from pathlib import Path

import pytest

from grpo_verl_ext.runs.verl_run import CorruptFileError, Response, read_dump, read_metrics


def line(step: int, **data: float) -> str:
    return json.dumps({"step": step, "data": data}) + "\n"


def test_a_later_attempt_has_the_last_word(tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    first.write_text(line(0, acc=0.1) + line(1, loss=1.0, norm=2.0))
    second.write_text(line(1, loss=3.0) + line(2, loss=4.0))
    assert read_metrics([first, second]) == {0: {"acc": 0.1}, 1: {"loss": 3.0, "norm": 2.0}, 2: {"loss": 4.0}}


def test_half_a_line_at_the_end_is_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "1"
    file.write_text(line(1, loss=1.0) + line(2, loss=2.0)[:-5])
    assert read_metrics([file]) == {1: {"loss": 1.0}}
    assert read_metrics([]) == {}


def test_what_is_no_finite_number_is_nan_and_lists_are_left_out(tmp_path: Path) -> None:
    """The square of a larger number may overflow; verl's logger writes null for NaN and infinities."""
    (file := tmp_path / "1").write_text('{"step": 1, "data": {"a": null, "b": 1e200, "c": [1], "d": 3}}\n')
    assert repr(read_metrics([file])) == "{1: {'a': nan, 'b': nan, 'd': 3.0}}"


@pytest.mark.parametrize("broken", ["{", "[]", '{"step": 1}', '{"step": "one", "data": {}}', "1", ""])
def test_a_whole_line_that_is_no_record_is_named(tmp_path: Path, broken: str) -> None:
    file = tmp_path / "attempt-1.jsonl"
    file.write_text(line(1, loss=1.0) + broken + "\n")
    with pytest.raises(CorruptFileError, match=r"attempt-1\.jsonl, line 2, is no record"):
        read_metrics([file])
    assert file.read_text().endswith(broken + "\n")


def dumped(**changed: object) -> str:
    record = {"input": "1+1=?", "output": "2", "gts": "2", "score": 1.0, "step": 3, "uid": "a_b_0_0"}
    return json.dumps(record | changed, ensure_ascii=False)


def test_a_line_is_a_response_and_the_uid_names_its_prompt(tmp_path: Path) -> None:
    """A uid of another shape is its own prompt, and padding is no response."""
    other = dumped(uid="a_b_1_0", gts=None, score=0)
    (file := tmp_path / "3.jsonl").write_text(f"{dumped()}\n{other}\n")
    wanted = [Response("a_b", "1+1=?", "2", *of_rule, 3) for of_rule in (("2", 1.0), (None, 0.0))]
    assert read_dump(file) == wanted
    padding = "pad" + "0123456789abcdef" * 2
    uids = ("one_two", "x", f"{padding}_0_0", f"{padding}_1_0", "pad_0_0")
    file.write_text("".join(dumped(uid=uid) + "\n" for uid in uids))
    assert [response.prompt_id for response in read_dump(file)] == ["one_two", "x", "pad"]


@pytest.mark.parametrize("text", ["\u2028 \u2029 \x85 \x0b \x0c", "\x00\x07\x1b[31m\r", "ß 𝔘 \ufffd"])
def test_a_response_may_hold_any_character(tmp_path: Path, text: str) -> None:
    file = tmp_path / "3.jsonl"
    file.write_text(dumped(output=text) + "\n", encoding="utf-8")
    (response,) = read_dump(file)
    assert response.output == text


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ('{"input": "a", "outp', "Invalid JSON"),
        ("", "Invalid JSON"),
        ('"score"', "should be an object"),
        (json.dumps({"input": "x", "output": "y"}), "'uid' is missing"),
        (dumped(score="1"), "score is '1'"),
        (dumped(score=math.nan), "score is nan"),
        (dumped(step="1"), "step is '1'"),
        (dumped().replace("1+1", "\\ud800"), "unexpected end of hex escape"),
        ("\udcff", "expected value at line 1 column 1"),
    ],
)
def test_a_corrupt_line_is_named_and_left(tmp_path: Path, broken: str, reason: str) -> None:
    file = tmp_path / "3.jsonl"
    before = "\n".join([dumped(), broken, dumped(), ""]).encode(errors="surrogateescape")
    file.write_bytes(before)
    with pytest.raises(CorruptFileError) as caught:
        read_dump(file)
    assert f"{file}, line 2, is no record of verl's dump" in str(caught.value)
    assert reason in str(caught.value)
    assert file.read_bytes() == before
