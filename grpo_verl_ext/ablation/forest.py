"""Two figures of one metric and measure: what each variant reached, and how it differs from the baseline."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpo_verl_ext.ablation.analysis import Row
from grpo_verl_ext.utils.plotting import looks as looks_of

SIZE = (5.0, 0.9)
"""Inches: width, and height without variants."""
HEIGHT_OF_ONE = 0.38


def draw_values(rows: list[Row], numbers: dict[str, int], label: str) -> Figure:
    """Mean and 95 % interval; each seed is a hollow mark.

    Args:
        numbers: of the variants in the grid, for their looks.
    """
    figure, axes = _empty(rows)
    for place, row in enumerate(rows):
        looks = looks_of(numbers[row.variant])
        _interval(axes, place, row.summary.mean, (row.summary.low, row.summary.high), looks)
        seeds = list(row.by_seed.values())
        axes.plot(seeds, [place] * len(seeds), linestyle="", fillstyle="none", markersize=6, **looks)
    axes.set(xlabel=label)
    return figure


def draw_differences(rows: list[Row], numbers: dict[str, int], label: str) -> Figure | None:
    """Mean difference from the baseline, paired by seed, and its 95 % interval; None without any."""
    compared = [(row, row.comparison) for row in rows if row.comparison is not None]
    if not compared:
        return None
    figure, axes = _empty([row for row, _ in compared])
    axes.axvline(0, color="#555555", linewidth=1)
    for place, (row, versus) in enumerate(compared):
        looks = looks_of(numbers[row.variant])
        _interval(axes, place, versus.difference, (versus.low, versus.high), looks)
    axes.set(xlabel=label)
    return figure


def _empty(rows: list[Row]) -> tuple[Figure, Axes]:
    width, height = SIZE
    figure = Figure(figsize=(width, height + HEIGHT_OF_ONE * len(rows)), layout="constrained")
    axes = figure.subplots()
    axes.set_yticks(range(len(rows)), [row.variant for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(axis="x", alpha=0.3)
    return figure, axes


def _interval(
    axes: Axes, place: int, mean: float, ends: tuple[float | None, float | None], looks: dict[str, Any]
) -> None:
    low, high = ends
    if low is not None and high is not None:
        axes.plot([low, high], [place, place], linewidth=2, color=looks["color"])
    axes.plot([mean], [place], markersize=8, **looks)
