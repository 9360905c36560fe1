"""Test that `ablate report` makes every number of RESULTS.md from the results in the repository."""

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import grpo_verl_ext.config
from grpo_verl_ext.ablation.declaration import GridSettings
from grpo_verl_ext.ablation.grid import read_grid
from grpo_verl_ext.ablation.report import Report, write_files
from grpo_verl_ext.ablation.results import read_table
from grpo_verl_ext.utils.documents import as_plain

EXAMPLES = Path(__file__).parents[2] / "examples" / "ablations"
KEPT = sorted((EXAMPLES / "results").glob("*/metrics.parquet"))
EARLIER = ("calibration_mixed_before", "calibration_verbose_before")
"""Results of a grid as it was before it changed, whose file is in git's history."""


SHOWN = ("seeds", "mean", "std", "versus_difference", "versus_low", "versus_high")
"""Columns of the tables of RESULTS.md, by their names in report.json."""


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Name of each kept grid → folder of the report that is made from it."""
    folders = {}
    for kept in KEPT:
        folders[kept.parent.name] = tmp_path_factory.mktemp(kept.parent.name)
        # All that `ablate report` writes but its pictures, which take most of its time.
        write_files(Report(read_table(kept)), folders[kept.parent.name])
    return folders


@pytest.mark.parametrize("kept", KEPT, ids=lambda file: file.parent.name)
def test_the_report_is_made_anew_and_is_the_same(kept: Path, reports: dict[str, Path]) -> None:
    made = (reports[kept.parent.name] / "report.md").read_text()
    assert made == kept.with_name("report.md").read_text()


@pytest.mark.parametrize(
    "kept", [kept for kept in KEPT if kept.parent.name not in EARLIER], ids=lambda file: file.parent.name
)
def test_the_grid_beside_it_is_the_one_that_was_run(kept: Path) -> None:
    """In every key: what ran, what is compared, and all that was declared."""
    beside = as_plain(read_grid(EXAMPLES / f"{kept.parent.name}.yaml"))
    then = as_plain(read_table(kept).settings)
    beside["base"] = [word for word in beside["base"] if not word.startswith("hydra.searchpath=")]
    then["base"] = [word for word in then["base"] if "gvpo_terms_ablation" not in word]  # once needed
    assert beside == then
    assert beside.keys() == {field.name for field in fields(GridSettings)} - {"folder"}


def test_every_number_of_every_table_is_theirs(reports: dict[str, Path]) -> None:
    rows = {
        (name, row["metric"], row["measure"], row["variant"]): row
        for name, folder in reports.items()
        for row in json.loads((folder / "report.json").read_text())["rows"]
    }
    shown = dict(compared((EXAMPLES / "RESULTS.md").read_text()))
    assert len(shown) == 2 * 5 + 15 + 12 + 4  # two tables of five losses, and the three searches
    assert {what: as_shown(rows[what], cells) for what, cells in shown.items()} == shown


def test_every_verdict_is_shown_as_its_report_says_it(reports: dict[str, Path]) -> None:
    """A line that begins with what a comparison came to; none is left out, and none is of nobody."""
    said = [
        line
        for folder in reports.values()
        for line in (folder / "report.md").read_text().splitlines()
        if line.startswith("- **") and not line.startswith("- **exploratory")
    ]
    assert said
    shown = [line for line in (EXAMPLES / "RESULTS.md").read_text().splitlines() if line.startswith("- **")]
    assert sorted(shown) == sorted(said)


def test_the_costs_are_theirs(reports: dict[str, Path]) -> None:
    text = (EXAMPLES / "RESULTS.md").read_text()
    (table,) = [part for part in text.split("\n\n") if re.match(r"\| variant \| .*\| seconds", part)]
    assert table in (reports["losses_chain_sum"] / "report.md").read_text()


def test_the_family_has_learnt_as_its_table_says() -> None:
    """At least 0.25 more right answers after 16 steps, each preset once, GRPO with either half.

    Kimi's gains less, but more than four standard errors of a difference, 0.03.
    """
    learnt = [*learnt_in("family_chain_sum"), *learnt_in("family_later_chain_sum")]
    presets = {file.stem for file in Path(grpo_verl_ext.config.__path__[0], "algo").glob("*.yaml")}
    assert sorted(names := [name for name, *_ in learnt]) == sorted([*presets.intersection(names), "grpo"])
    assert [name for name, before, after in learnt if after - before < 0.25] == ["kimi"]
    assert min(after - before for _, before, after in learnt) > 4 * 0.03
    shown = re.findall(
        r"^\| (\w+) \| (0\.\d{3}) \| (0\.\d{3}) \|$", (EXAMPLES / "RESULTS.md").read_text(), re.M
    )
    assert shown == [(name, f"{before:.3f}", f"{after:.3f}") for name, before, after in learnt]


def learnt_in(grid: str) -> list[tuple[str, float, float]]:
    """Preset, accuracy before and after 16 steps, of each run."""
    results = read_table(EXAMPLES / "results" / grid / "metrics.parquet")
    accuracy = "val-core/chain_sum/acc/mean@1"
    curves = {variant: dict(points) for (variant, _), points in results.curves[accuracy].items()}
    return [(run.variant, curves[run.variant][0], curves[run.variant][16]) for run in results.runs]


def compared(text: str) -> list[tuple[tuple[str, str, str, str], list[str]]]:
    """(grid, metric, measure, variant) → numbers of each row of each table of differences."""
    found = []
    for part in re.split(r"^##+ ", text, flags=re.M)[1:]:
        title = re.match(r"`(\w+)`: (\S+), (\w+)( \(step \d+\))?; differences from", part)
        for line in part.splitlines() if title else ():
            if line.startswith("| ") and not line.startswith("| variant"):
                variant, *cells = line.strip("| ").split(" | ")
                numbers = [number for cell in cells for number in re.findall(r"[-+]?\d[\d.]*", cell)]
                found.append(((title[1], title[2], title[3], variant), numbers))
    return found


def as_shown(row: dict[str, Any], like: list[str]) -> list[str]:
    """The row's numbers, each with the decimals and the plus sign of the one that is shown."""
    numbers = [row[name] for name in SHOWN if row.get(name) is not None]
    assert len(numbers) == len(like), row
    return [
        f"{number:{'+' if text[0] == '+' else ''}.{len(text.partition('.')[2])}f}"
        for number, text in zip(numbers, like, strict=True)
    ]
