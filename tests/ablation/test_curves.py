"""Test the forest plot and learning curves: the plotted numbers and the files."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg

from grpo_verl_ext.ablation.analysis import Analysis, analyse
from grpo_verl_ext.ablation.figures import BELOW, draw, draw_bands, forest
from grpo_verl_ext.ablation.measures import bands
from grpo_verl_ext.ablation.report import report_of
from grpo_verl_ext.ablation.table import Results, read_results
from grpo_verl_ext.utils.plotting import looks as looks_of


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
    assert baseline.mean.tolist() == [0.0, 0.5]
    assert np.isnan(baseline.low).all(), "one seed has no interval"
    assert (other.variant, other.steps) == ("a", [0, 2])
    assert other.mean.tolist() == [0.5, 0.75]
    assert np.isfinite([other.low, other.high]).all()
    assert bands(results, "nowhere") == []


def test_files_for_each_metric_that_was_measured_the_same_each_time(results: Results, tmp_path: Path) -> None:
    *forest_files, png, svg = draw(report_of(analyse(results)), tmp_path)
    assert [file.name for file in forest_files] == ["forest.png", "forest.svg"]
    assert (png.name, svg.name) == ("curve-val-acc.png", "curve-val-acc.svg")
    assert png.read_bytes().startswith(b"\x89PNG")
    text = svg.read_text()
    assert "val/acc" in text
    assert "b, seeds: 1" in text
    assert "a − b" in forest_files[1].read_text()
    files = [*forest_files, png, svg]
    first = [file.read_bytes() for file in files]
    assert draw(report_of(analyse(results)), tmp_path) == files
    assert [file.read_bytes() for file in files] == first
    assert not list(tmp_path.glob(".*"))


def drawn(analysis: Analysis) -> Axes:
    figure = forest(report_of(analysis))
    assert figure is not None
    return figure.axes[0]


def horizontal(axes: Axes, place: float) -> list[list[float]]:
    """Sorted x of every line at a height that is not a separator."""
    lines = [line for line in axes.lines if set(line.get_ydata()) == {place}]
    return [sorted(map(float, line.get_xdata())) for line in lines]


def test_the_forest_has_each_interval_its_mean_and_its_starts(declared: Analysis) -> None:
    axes = drawn(declared)
    assert [text.get_text() for text in axes.texts] == [
        f"{verdict.variant} − grpo" for verdict in declared.verdicts
    ]
    for place, verdict in enumerate(declared.verdicts):
        interval, mean = horizontal(axes, place)
        assert (interval, mean) == ([verdict.low, verdict.high], [verdict.difference])
        (starts,) = horizontal(axes, place + BELOW)
        assert starts == sorted(verdict.by_seed.values())
    hollow = [line for line in axes.lines if line.get_fillstyle() == "none"]
    assert len(hollow) == len(declared.verdicts)
    (zero,) = [line for line in axes.lines if list(line.get_xdata()) == [0, 0]]
    assert zero.get_color() == "#555555"
    assert axes.get_xlabel() == "difference, area of gold_response/probability"


def test_a_difference_of_differences_looks_like_no_variant(declared: Analysis) -> None:
    one, *others = declared.verdicts
    both = dataclasses.replace(one, variant="(a − b)", against="(c − d)")
    axes = drawn(dataclasses.replace(declared, verdicts=[both, *others]))
    assert axes.texts[0].get_text() == "(a − b) − (c − d)"
    (drawn_one,) = [line for line in axes.lines if list(line.get_xdata()) == [one.difference]]
    variants = range(len(declared.results.variants))
    assert drawn_one.get_color() not in [looks_of(number)["color"] for number in variants]


@pytest.mark.parametrize(
    "names", [["a", "b"], ["beta-0.5", "beta-1", "beta-2", "beta-4"], ["a" * 60, "b" * 60]]
)
def test_a_legend_is_no_wider_than_its_figure(results: Results, names: list[str]) -> None:
    (band, *_) = bands(results, "val/acc")
    figure = draw_bands([dataclasses.replace(band, variant=name) for name in names], "val/acc")
    FigureCanvasAgg(figure).draw()
    (legend,) = figure.legends
    assert legend.get_window_extent().width <= figure.bbox.width


def test_the_band_is_the_margin(declared: Analysis) -> None:
    (band,) = drawn(declared).patches
    x, width = band.get_x(), band.get_width()
    assert (x, x + width) == (-0.05, 0.05)
    without = dataclasses.replace(declared.results.settings, margin=None)
    analysis = dataclasses.replace(declared, results=dataclasses.replace(declared.results, settings=without))
    assert not drawn(analysis).patches
    # Without verdicts another number may be drawn than the primary, in whose units the margin is.
    rows = analyse(declared.results).rows
    assert not drawn(dataclasses.replace(declared, verdicts=[], rows=rows)).patches


def test_without_a_declaration_the_area_of_the_first_metric_is_drawn(results: Results) -> None:
    axes = drawn(analyse(results))
    # At the steps that most runs have, 0 and 2, the areas with seed 1 are (0.25 + 1) / 2 of a and 0.25 of b.
    assert (horizontal(axes, 0), horizontal(axes, BELOW)) == ([[0.375]], [[0.375]])
    assert [text.get_text() for text in axes.texts] == ["a − b"]
    assert not axes.patches


def test_without_a_difference_there_is_no_forest(tmp_path: Path, grid_of, leave) -> None:
    grid_of(["a", "b"], ["acc"], seeds=[1])
    leave("a", 1, {1: {"acc": 0.5}, 2: {"acc": 0.5}})
    assert forest(report_of(analyse(read_results(tmp_path)))) is None


def test_the_primary_has_the_first_curve(declared: Analysis, tmp_path: Path) -> None:
    names = [file.name for file in draw(report_of(declared), tmp_path)]
    assert names == [
        f"{name}.{kind}"
        for name in ("forest", "curve-gold-response-probability", "curve-val-acc")
        for kind in ("png", "svg")
    ]
