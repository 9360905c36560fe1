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
    text = (folder / "report.md").read_text()
    assert text == (kept / "report.md").read_text()
    tables = [part for part in text.split("\n\n") if part.startswith("| ")]
    assert len(tables) > 3
    shown = (EXAMPLES / "RESULTS.md").read_text()
    titles = [line for line in shown.splitlines() if line.startswith("### ")]
    for title, table in zip([p for p in text.split("\n\n") if p.startswith("### ")], tables, strict=False):
        if title.splitlines()[0] in titles:
            assert table in shown, title
