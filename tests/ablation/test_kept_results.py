"""The results that are kept in the repository: every number of RESULTS.md comes from them by `report`."""

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from grpo_verl_ext.cli import app

EXAMPLES = Path(__file__).parents[2] / "examples" / "ablations"
KEPT = sorted(folder for folder in (EXAMPLES / "results").iterdir() if folder.is_dir())


@pytest.mark.parametrize("kept", KEPT, ids=lambda folder: folder.name)
def test_the_report_is_made_anew_and_is_the_same(kept: Path, tmp_path: Path) -> None:
    folder = tmp_path / kept.name
    shutil.copytree(kept, folder, ignore=shutil.ignore_patterns("report.*", "curve-*"))
    finished = CliRunner().invoke(app, ["report", str(folder)])
    assert finished.exit_code == 0, finished.output
    assert (folder / "report.md").read_text() == (kept / "report.md").read_text()


def test_every_table_is_one_of_theirs() -> None:
    made = {table for kept in KEPT for table in tables((kept / "report.md").read_text())}
    shown = tables((EXAMPLES / "RESULTS.md").read_text())
    assert len(shown) == 6
    assert set(shown) <= made


def tables(text: str) -> list[str]:
    return [part for part in text.split("\n\n") if part.startswith("| ")]
