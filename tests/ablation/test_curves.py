"""Test learning curves: the plotted numbers and the files."""

from pathlib import Path

import pytest

from grpo_verl_ext.ablation.plots import bands, draw
from grpo_verl_ext.ablation.results import Results, read_results


@pytest.fixture
def results(tmp_path: Path, grid_of, leave) -> Results:
    grid_of(["a", "b", "c"], ["val/acc", "nowhere"], baseline=["b"])
    for variant, seed, points in (
        ("a", 1, {0: 0.25, 1: 0.5, 2: 1.0}),
        ("a", 2, {0: 0.75, 2: 0.5}),
        ("b", 1, {0: 0.0, 2: 0.5}),
    ):
        leave(variant, seed, {step: {"val/acc": value} for step, value in points.items()})
    return read_results(tmp_path)


def test_bands_are_means_over_the_steps_that_all_seeds_have(results: Results) -> None:
    baseline, other = bands(results, "val/acc")
    assert (baseline.variant, baseline.steps) == ("b", [0, 2])
    assert [summary.mean for summary in baseline.summaries] == [0.0, 0.5]
    assert all(summary.low is None for summary in baseline.summaries), "one seed has no interval"
    assert (other.variant, other.steps) == ("a", [0, 2])
    assert [summary.mean for summary in other.summaries] == [0.5, 0.75]
    assert all(summary.low is not None for summary in other.summaries)
    assert bands(results, "nowhere") == []


def test_files_for_each_metric_that_was_measured_the_same_each_time(results: Results, tmp_path: Path) -> None:
    png, svg = draw(results, tmp_path)
    assert (png.name, svg.name) == ("curve-val-acc.png", "curve-val-acc.svg")
    assert png.read_bytes().startswith(b"\x89PNG")
    text = svg.read_text()
    assert "val/acc" in text
    assert "b, seeds: 1" in text
    first = png.read_bytes(), svg.read_bytes()
    draw(results, tmp_path)
    assert (png.read_bytes(), svg.read_bytes()) == first
    assert not list(tmp_path.glob(".curve*"))
