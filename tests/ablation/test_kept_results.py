"""Test that `ablate report` makes every number of RESULTS.md from the results in the repository."""

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from grpo_verl_ext.cli import app

EXAMPLES = Path(__file__).parents[2] / "examples" / "ablations"
KEPT = sorted((EXAMPLES / "results").glob("*/runs.json"))


@pytest.mark.parametrize("kept", KEPT, ids=lambda file: file.parent.name)
def test_the_report_is_made_anew_and_is_the_same(kept: Path, tmp_path: Path) -> None:
    shutil.copy(kept, tmp_path)
    finished = CliRunner().invoke(app, ["ablate", "report", str(tmp_path / "runs.json")])
    assert finished.exit_code == 0, finished.output
    assert (tmp_path / "report.md").read_text() == (kept.with_name("report.md")).read_text()


def test_every_table_is_one_of_theirs() -> None:
    assert len(KEPT) == 2
    made = {table for kept in KEPT for table in tables(kept.with_name("report.md").read_text())}
    shown = tables((EXAMPLES / "RESULTS.md").read_text())
    assert len(shown) == 6
    assert set(shown) <= made


def test_names_that_every_file_system_takes() -> None:
    kept = [path for path in (EXAMPLES / "results").rglob("*") if path.name != ".gitignore"]
    assert [path.name for path in kept if not path.name.replace("_", "").replace(".", "").isalnum()] == []


def tables(text: str) -> list[str]:
    return [part for part in text.split("\n\n") if part.startswith("| ")]
