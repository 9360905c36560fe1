"""Test the forest plot and learning curves: the plotted numbers and the files."""

import dataclasses
from pathlib import Path

import pytest
from matplotlib.axes import Axes

from grpo_verl_ext.ablation.report import Report, forest, learning_curves
from grpo_verl_ext.ablation.results import Results, read_results
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


def test_curves_have_the_steps_that_all_seeds_have(results: Results) -> None:
    """The baseline comes first; after the seeds of a variant comes their mean."""
    figure = learning_curves(Report(results), "val/acc")
    assert figure is not None
    assert [(*line.get_xdata(), *line.get_ydata()) for line in figure.axes[0].lines] == [
        *[(0, 2, 0.0, 0.5), (0, 2, 0.0, 0.5)],
        *[(0, 2, 0.25, 1.0), (0, 2, 0.75, 0.5), (0, 2, 0.5, 0.75)],
    ]
    assert learning_curves(Report(results), "nowhere") is None


def drawn(analysis: Report) -> Axes:
    figure = forest(analysis)
    assert figure is not None
    return figure.axes[0]


def horizontal(axes: Axes, place: float) -> list[list[float]]:
    """Sorted x of every line at a height that is not a separator."""
    lines = [line for line in axes.lines if set(line.get_ydata()) == {place}]
    return [sorted(map(float, line.get_xdata())) for line in lines]


def test_the_forest_has_each_interval_its_mean_and_its_starts(declared: Report) -> None:
    axes = drawn(declared)
    assert [text.get_text() for text in axes.texts] == [
        f"{verdict.variant} − grpo" for verdict in declared.verdicts
    ]
    for place, verdict in enumerate(declared.verdicts):
        interval, mean = horizontal(axes, place)
        assert (interval, mean) == ([verdict.low, verdict.high], [verdict.difference])
        (starts,) = horizontal(axes, place + 0.2)
        assert starts == sorted(verdict.by_seed.values())
    hollow = [line for line in axes.lines if line.get_fillstyle() == "none"]
    assert len(hollow) == len(declared.verdicts)
    (zero,) = [line for line in axes.lines if list(line.get_xdata()) == [0, 0]]
    assert zero.get_color() == "#555555"
    assert axes.get_xlabel() == "difference, mean over steps of gold_response/probability"


def test_a_difference_of_differences_looks_like_no_variant(declared: Report) -> None:
    one, *others = declared.verdicts
    both = dataclasses.replace(one, variant="(a − b)", against="(c − d)")
    axes = drawn(dataclasses.replace(declared, judged=([], [both, *others])))
    assert axes.texts[0].get_text() == "(a − b) − (c − d)"
    (drawn_one,) = [line for line in axes.lines if list(line.get_xdata()) == [one.difference]]
    variants = range(len(declared.results.variants))
    assert drawn_one.get_color() not in [looks_of(number)["color"] for number in variants]


def test_the_band_is_the_margin(declared: Report) -> None:
    (band,) = drawn(declared).patches
    x, width = band.get_x(), band.get_width()
    assert (x, x + width) == (-0.05, 0.05)
    without = dataclasses.replace(declared.results.settings, margin=None)
    analysis = dataclasses.replace(declared, results=dataclasses.replace(declared.results, settings=without))
    assert not drawn(analysis).patches
    # Without verdicts another number may be drawn than the primary, in whose units the margin is.
    assert not drawn(dataclasses.replace(declared, judged=([], []))).patches


def test_without_a_declaration_the_area_of_the_first_metric_is_drawn(results: Results) -> None:
    axes = drawn(Report(results))
    # At the steps that most runs have, 0 and 2, the areas with seed 1 are (0.25 + 1) / 2 of a and 0.25 of b.
    assert (horizontal(axes, 0), horizontal(axes, 0.2)) == ([[0.375]], [[0.375]])
    assert [text.get_text() for text in axes.texts] == ["a − b"]
    assert not axes.patches
