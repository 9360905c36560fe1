"""Reading verl's dump: groups, order, and lines that are none."""

import json
from pathlib import Path

import pytest

from grpo_verl_ext.anatomy.dump import AnatomyError, prompt_uid, read_steps


def test_steps_in_the_order_of_their_numbers_and_rows_in_that_of_the_file(write, tmp_path: Path) -> None:
    write(10, [("p", 0.5, "ten")])
    write(2, [("p", 1.0, "x"), ("q", 0.0, "y")])
    folder = write(1, [("p", 0, "first")])
    (folder / "notes.jsonl").write_text("not verl's")
    steps = list(read_steps(folder))
    assert [[response.text for response in step] for step in steps] == [["first"], ["x", "y"], ["ten"]]
    (first,), (_, second), _ = steps
    assert (first.prompt, first.score, first.step, first.group) == ("user\n1+1=?\nassistant\n", 0.0, 1, "p")
    assert (second.group, second.step) == ("q", 2)
    assert list(read_steps(folder / "2.jsonl")) == [steps[1]]


def test_a_file_with_several_steps_is_divided(write, tmp_path: Path) -> None:
    folder = write(1, [("p", 1, "a")])
    both = folder / "all.jsonl"
    text = (folder / "1.jsonl").read_text()
    later = (write(2, [("p", 1, "b")]) / "2.jsonl").read_text()
    both.write_text(later + text + later)
    assert [[response.text for response in step] for step in read_steps(both)] == [["a"], ["b", "b"]]


def test_the_prompt_of_a_uid_is_told_as_verl_tells_it() -> None:
    assert prompt_uid("187c93ba-58ea_3_0") == "187c93ba-58ea"
    assert prompt_uid("with_under_scores_12_1") == "with_under_scores"
    assert [prompt_uid(uid) for uid in ("plain", "one_part")] == ["plain", "one_part"]


@pytest.mark.parametrize("text", ["\u2028 \u2029 \x85 \x0b \x0c", "\x00\x07\x1b[31m\r", "ß 𝔘 \ufffd"])
def test_a_response_may_hold_any_character(write, text: str) -> None:
    ((response,),) = read_steps(write(1, [("p", 1, text)]))
    assert response.text == text


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"input": "a", "outp', "JSONDecodeError"),
        ("", "JSONDecodeError"),
        ("[1]", "TypeError"),
        ('"score"', "TypeError"),
        ('{"input": "a", "output": "b", "step": 1, "uid": "u_0_0"}', "'score'"),
        ('{"input": "a", "output": "b", "step": 1, "uid": "u_0_0", "score": "1"}', "score is a str"),
        ('{"input": "a", "output": "b", "step": 1, "uid": "u_0_0", "score": null}', "score is a NoneType"),
        ('{"input": "a", "output": "b", "step": 1, "uid": "u_0_0", "score": NaN}', "score is nan"),
        ('{"input": "a", "output": 5, "step": 1, "uid": "u_0_0", "score": 1}', "output is a int"),
        ('{"input": "a", "output": "b", "step": "1", "uid": "u_0_0", "score": 1}', "step is a str"),
        ('{"input": "a", "output": "b", "step": 1, "score": 1}', "'uid'"),
        ("\udcff", "UnicodeDecodeError"),
    ],
)
def test_a_line_that_is_no_rollout_is_named_and_left_in_place(write, line: str, reason: str) -> None:
    file = write(3, [("p", 1, "good")]) / "3.jsonl"
    content = file.read_bytes() + line.encode(errors="surrogateescape") + b"\n"
    file.write_bytes(content)
    with pytest.raises(AnatomyError) as caught:
        list(read_steps(file.parent))
    assert f"{file}, line 2, is no rollout of verl's" in str(caught.value)
    assert reason in str(caught.value)
    assert "input, output, score, step, uid" in str(caught.value)
    assert file.read_bytes() == content


def test_nothing_to_read(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 1}))
    for nothing, words in (
        (tmp_path, "has no 1.jsonl"),
        (tmp_path / "gone", "is neither a folder nor a file"),
    ):
        with pytest.raises(AnatomyError, match=f"{words}.*trainer.rollout_data_dir=<folder>"):
            list(read_steps(nothing))
