"""Test that a grid killed at random points ends with the report of an uninterrupted one."""

import json
import random
import time
from pathlib import Path

import kill_grid
import pytest
from processes import KILLS, Spoken

SUFFIXES = {".json", ".csv", ".md", ".html", ".svg", ".png"}


def report(ablate, folder: Path) -> dict[str, bytes]:
    """What was printed, without the paths at the end, and every file of the report."""
    printed = ablate("report", folder).output.splitlines()
    printed = [line for line in printed if not line.startswith(str(folder))]
    files = {file.name: file.read_bytes() for file in folder.iterdir() if file.suffix in SUFFIXES}
    content = json.loads(files["report.json"])
    (begun,) = content["beginnings"]
    del begun["at"]
    files["report.json"] = json.dumps(content, ensure_ascii=False).encode()
    return {"printed": "\n".join(printed).encode(), **files}


@pytest.mark.parametrize("kills", KILLS)
def test_kills_at_random_points_change_no_result(ablate, tmp_path: Path, kills: int) -> None:
    def start(name: str, attempt: int = 0) -> Spoken:
        return Spoken(kill_grid.main, tmp_path / name, folder=tmp_path / f"said-{name}-{attempt}")

    begun = start("unbroken").said().split()
    assert begun == [f"{variant}/seed-{seed}" for seed in (1, 2, 3) for variant in ("base", "other")]

    rng = random.Random(0)
    for attempt in range(kills):
        process = start("killed", attempt)
        # A run has begun; one takes about a second and a half.
        process.first_line()
        time.sleep(rng.uniform(0, 1.6))
        process.kill()
        report(ablate, tmp_path / "killed")
    start("killed", kills).said()

    of_killed, of_unbroken = (report(ablate, tmp_path / name) for name in ("killed", "unbroken"))
    assert of_killed == of_unbroken
    forms = {"printed", "report.json", "report.md", "report.html"}
    assert forms <= of_killed.keys()
    (verdict,) = json.loads(of_killed["report.json"])["verdicts"]
    assert (verdict["expected"], len(verdict["by_seed"])) == ("higher", 3)
    assert all(verdict["sentence"].encode() in of_killed[form] for form in forms)
    # Neither repeated nor begun at all.
    assert start("killed", kills + 1).said() == ""
