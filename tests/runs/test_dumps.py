"""verl's dumps of responses."""

import json
import math
from pathlib import Path

import pytest

from grpo_verl_ext.runs.dumps import CorruptDumpError, Response, read_dump


def line(**changed: object) -> str:
    record = {"input": "1+1=?", "output": "2", "gts": "2", "score": 1.0, "step": 3, "uid": "a_b_0_0"}
    return json.dumps(record | changed, ensure_ascii=False)


def test_a_uid_of_another_shape_is_its_own_prompt(tmp_path: Path) -> None:
    file = tmp_path / "3.jsonl"
    file.write_text(line(uid="one_two") + "\n" + line(uid="x") + "\n")
    assert [response.prompt_id for response in read_dump(file)] == ["one_two", "x"]


def test_a_line_is_a_response_and_the_uid_names_its_prompt(tmp_path: Path) -> None:
    file = tmp_path / "3.jsonl"
    # U+2028 is no end of a line in JSON, and verl leaves it as it is.
    file.write_text(line() + "\n" + line(uid="a_b_1_0", output="\u2028", gts=None, score=0) + "\n")
    assert read_dump(file) == [
        Response("a_b", "1+1=?", "2", "2", 1.0, 3),
        Response("a_b", "1+1=?", "\u2028", None, 0.0, 3),
    ]


@pytest.mark.parametrize(
    "broken",
    [
        *("", "{", "[]", "3"),
        line(score=None),
        line(score="high"),
        line(score=math.inf),
        line(step="3"),
        line().replace("1+1", "\\ud800"),
        json.dumps({"input": "x", "output": "y"}),
    ],
)
def test_a_corrupt_line_is_named_and_left(tmp_path: Path, broken: str) -> None:
    file = tmp_path / "3.jsonl"
    file.write_text(line() + "\n" + broken + "\n" + line() + "\n")
    before = file.read_bytes()
    with pytest.raises(CorruptDumpError, match=r"3\.jsonl, line 2, is no response of verl's dump"):
        read_dump(file)
    assert file.read_bytes() == before
