"""Test metrics of several attempts at one run."""

import json
from pathlib import Path

import pytest

from grpo_verl_ext.runs.metrics import CorruptMetricsError, read_metrics


def line(step: int, **data: float) -> str:
    return json.dumps({"step": step, "data": data}) + "\n"


def test_a_later_attempt_has_the_last_word(tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    first.write_text(line(0, acc=0.1) + line(1, loss=1.0, norm=2.0))
    second.write_text(line(1, loss=3.0) + line(2, loss=4.0))
    assert read_metrics([first, second]) == {
        0: {"acc": 0.1},
        1: {"loss": 3.0, "norm": 2.0},
        2: {"loss": 4.0},
    }


def test_half_a_line_at_the_end_is_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "1"
    file.write_text(line(1, loss=1.0) + line(2, loss=2.0)[:-5])
    assert read_metrics([file]) == {1: {"loss": 1.0}}
    assert read_metrics([]) == {}


@pytest.mark.parametrize("broken", ["{", "[]", '{"step": 1}', '{"step": "one", "data": {}}', "1", ""])
def test_a_whole_line_that_is_no_record_is_named(tmp_path: Path, broken: str) -> None:
    file = tmp_path / "attempt-1.jsonl"
    file.write_text(line(1, loss=1.0) + broken + "\n")
    with pytest.raises(CorruptMetricsError, match=r"attempt-1\.jsonl, line 2, is no record"):
        read_metrics([file])
    assert file.read_text().endswith(broken + "\n")
