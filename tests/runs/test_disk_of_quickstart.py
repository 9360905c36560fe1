"""Test the quick start on a full disk and in a folder that cannot be written: one sentence, then a resume."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from limits import full, read_only

EXAMPLES = Path(__file__).parents[2] / "examples"
QuickStart = Callable[[], tuple[object, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> QuickStart:
    """Start it in ``tmp_path/closed/run``, with a stand-in for verl; returns status and standard error."""
    (tmp_path / "closed").mkdir()
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "helpers" / "fake_verl"))
    quickstart = importlib.import_module("quickstart")
    monkeypatch.setattr(quickstart, "prepare", lambda *_: None)
    out = str(tmp_path / "closed" / "run")
    monkeypatch.setattr(sys, "argv", ["quickstart.py", "--out", out, "--steps", "5", "data.seed=1"])

    def run() -> tuple[object, str]:
        status: object = 0
        try:
            quickstart.main()
        except SystemExit as ended:
            status = ended.code
        return status, capsys.readouterr().err

    return run


def test_a_folder_in_which_nothing_can_be_made(run: QuickStart, tmp_path: Path) -> None:
    with read_only(tmp_path / "closed"):
        assert run() == (
            1,
            f"quickstart.sh: {tmp_path}/closed/run.lock: Permission denied; valid is a place that this user "
            f"may read and write. Type: --out <another folder>\n",
        )
    assert run() == (0, "")


def test_a_full_disk_and_then_a_resume(
    run: QuickStart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quickstart = importlib.import_module("quickstart")
    draw = quickstart.draw_learning_curve
    summary = tmp_path / "closed" / "run" / "summary.json"
    with monkeypatch.context() as disk:
        disk.setattr(quickstart, "draw_learning_curve", lambda *of: (draw(*of), full(summary)))
        assert run() == (
            1,
            f"quickstart.sh: {summary}: No space left on device. Free space there, and run the same command "
            f"again; what was finished is kept\n",
        )
    assert (tmp_path / "closed" / "run" / "learning_curve.png").exists()
    assert run() == (0, "")
    assert summary.exists()
    assert not (tmp_path / "closed" / "run" / "attempt-2.jsonl").exists(), "the training was finished"
