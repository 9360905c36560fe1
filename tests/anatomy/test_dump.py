"""Test reading verl's dump: groups, order and invalid lines."""

import json
from pathlib import Path

import pytest

from grpo_verl_ext.anatomy.dump import AnatomyError, read_steps


def test_steps_in_the_order_of_their_numbers_and_rows_in_that_of_the_file(write, tmp_path: Path) -> None:
    write(10, [("p", 0.5, "ten")])
    write(2, [("p", 1.0, "x"), ("q", 0.0, "y")])
    folder = write(1, [("p", 0, "first")])
    (folder / "notes.jsonl").write_text("not verl's")
    steps = list(read_steps(folder))
    assert [[response.output for response in step] for step in steps] == [["first"], ["x", "y"], ["ten"]]
    (first,), (_, second), _ = steps
    assert (first.prompt, first.prompt_id) == ("user\n1+1=?\nassistant\n", "p")
    assert (first.score, first.step) == (0.0, 1)
    assert (second.prompt_id, second.step) == ("q", 2)
    assert list(read_steps(folder / "2.jsonl")) == [steps[1]]


def test_a_file_with_several_steps_is_divided(write, tmp_path: Path) -> None:
    folder = write(1, [("p", 1, "a")])
    both = folder / "all.jsonl"
    text = (folder / "1.jsonl").read_text()
    later = (write(2, [("p", 1, "b")]) / "2.jsonl").read_text()
    both.write_text(later + text + later)
    assert [[response.output for response in step] for step in read_steps(both)] == [["a"], ["b", "b"]]


def test_responses_of_several_outputs_are_refused(write) -> None:
    folder = write(1, [("p", 1, "a")])
    text = (folder / "1.jsonl").read_text()
    (folder / "1.jsonl").write_text(text + text.replace('_0"', '_1"'))
    with pytest.raises(AnatomyError, match=r"1\.jsonl has responses of several outputs"):
        list(read_steps(folder))


def test_a_line_that_is_no_response_is_named_and_left_in_place(write) -> None:
    file = write(3, [("p", 1, "good")]) / "3.jsonl"
    content = file.read_bytes() + b"{\n"
    file.write_bytes(content)
    with pytest.raises(AnatomyError, match=r"3\.jsonl, line 2, is no response of verl's dump"):
        list(read_steps(file.parent))
    assert file.read_bytes() == content


def test_nothing_to_read(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 1}))
    for nothing, words in (
        (tmp_path, "has no 1.jsonl"),
        (tmp_path / "gone", "is neither a folder nor a file"),
    ):
        with pytest.raises(AnatomyError, match=f"{words}.*trainer.rollout_data_dir=<folder>"):
            list(read_steps(nothing))
