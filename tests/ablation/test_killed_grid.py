"""Test that a grid killed at random points ends with the report of an uninterrupted one."""

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from grpo_verl_ext.cli import app


def start(folder: Path) -> subprocess.Popen[str]:
    script = Path(__file__).parents[1] / "helpers" / "kill_grid.py"
    return subprocess.Popen([sys.executable, str(script), str(folder)], stdout=subprocess.PIPE, text=True)


SUFFIXES = {".json", ".csv", ".md", ".html", ".svg", ".png"}


def report(folder: Path) -> dict[str, bytes]:
    """What was printed, without the paths at the end, and every file of the report."""
    finished = CliRunner().invoke(app, ["ablate", "report", str(folder)])
    assert finished.exit_code == 0, finished.output
    printed = [line for line in finished.output.splitlines() if not line.startswith(str(folder))]
    files = {file.name: file.read_bytes() for file in folder.iterdir() if file.suffix in SUFFIXES}
    return {"printed": "\n".join(printed).encode(), **files}


@pytest.mark.long
def test_five_kills_at_random_points_change_no_result(tmp_path: Path) -> None:
    unbroken = start(tmp_path / "unbroken")
    begun = unbroken.communicate(timeout=300)[0].split()
    assert unbroken.returncode == 0
    assert begun == [f"{variant}/seed-{seed}" for seed in (1, 2, 3) for variant in ("base", "other")]

    rng = random.Random(0)
    for _ in range(5):
        process = start(tmp_path / "killed")
        assert process.stdout is not None
        # A run has begun; one takes about a second and a half.
        process.stdout.readline()
        time.sleep(rng.uniform(0, 1.6))
        process.kill()
        process.communicate()
        report(tmp_path / "killed")
    last = start(tmp_path / "killed")
    last.communicate(timeout=300)
    assert last.returncode == 0

    of_killed, of_unbroken = report(tmp_path / "killed"), report(tmp_path / "unbroken")
    assert of_killed == of_unbroken
    forms = {"printed", "report.json", "report.md", "report.html"}
    assert forms | {"verdicts.csv", "checks.csv", "forest.svg", "curve-acc.svg"} <= of_killed.keys()
    (verdict,) = json.loads(of_killed["report.json"])["verdicts"]
    assert (verdict["expected"], verdict["starts"]) == ("higher", 3)
    assert all(verdict["sentence"].encode() in of_killed[form] for form in forms)
    # Neither repeated nor begun at all.
    assert start(tmp_path / "killed").communicate(timeout=300)[0] == ""
