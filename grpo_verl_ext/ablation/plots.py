"""Draw learning curves with interval bands (PNG and SVG), and the report's interval plots."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from grpo_verl_ext.ablation.analysis import Row
from grpo_verl_ext.ablation.results import Results
from grpo_verl_ext.ablation.statistics import Summary, curve, summarize
from grpo_verl_ext.utils.plotting import line_style, save
from grpo_verl_ext.utils.plotting import looks as looks_of


@dataclass(frozen=True)
class Band:
    """The curve of one variant over its finished seeds, at the steps that all of them measured."""

    variant: str
    number: int
    """Index of the variant, which fixes its colour and marker in every figure."""
    steps: list[int]
    seeds: list[list[float]]
    """For each seed a value per step."""
    summaries: list[Summary]


def bands(results: Results, metric: str) -> list[Band]:
    """The curves of a metric, the baseline first, without variants that do not have it."""
    found = []
    for number, variant in enumerate(results.variants):
        curves = [dict(curve(run.metrics, metric)) for run in results.finished(variant)]
        steps = sorted(set.intersection(*(set(each) for each in curves))) if curves else []
        if steps:
            seeds = [[each[step] for step in steps] for each in curves]
            summaries = [summarize(values) for values in zip(*seeds, strict=True)]
            found.append(Band(variant, number, steps, seeds, summaries))
    return found


def draw(results: Results, folder: Path) -> list[Path]:
    """Write ``curve-<metric>.png`` and ``.svg`` for each metric that has curves."""
    written = []
    for metric in results.settings.metrics:
        drawn = bands(results, metric)
        if drawn:
            figure = draw_bands(drawn, metric)
            name = "curve-" + re.sub(r"[^A-Za-z0-9.-]+", "-", metric)
            written += [save(figure, folder / f"{name}.{kind}") for kind in ("png", "svg")]
    return written


def draw_bands(drawn: list[Band], label: str) -> Figure:
    """A figure that stands alone, with legend and axis label."""
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    plot_bands(axes, drawn)
    axes.set(xlabel="step", ylabel=label, title="each seed, mean over seeds, 95 % interval")
    figure.legend(loc="outside lower center", ncols=min(len(drawn), 4), frameon=False)
    return figure


def plot_bands(axes: Axes, drawn: list[Band], *, log: bool = False) -> None:
    """Thin lines for seeds, a thick line for their mean, a band for its 95 % interval.

    The vertical axis covers the seeds; with few seeds the interval is wider and leaves it.
    """
    for band in drawn:
        looks, style = looks_of(band.number), line_style(band.number)
        label = f"{band.variant}, seeds: {band.summaries[0].seeds}"
        means = [summary.mean for summary in band.summaries]
        for values in band.seeds:
            axes.plot(band.steps, values, color=looks["color"], linewidth=0.6, alpha=0.5)
        axes.plot(band.steps, means, linestyle=style, markersize=4, label=label, **looks)
        _fill(axes, band, looks["color"])
    _limit(axes, [value for band in drawn for values in band.seeds for value in values], log=log)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)


def _limit(axes: Axes, values: list[float], *, log: bool) -> None:
    shown = [value for value in values if math.isfinite(value)] or [0.0]
    low, high = min(shown), max(shown)
    if log and low > 0:
        axes.set_yscale("log")
        axes.set_ylim(low / 1.2, high * 1.2)
    elif high > low:
        axes.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))


def _fill(axes: Axes, band: Band, colour: str) -> None:
    ends = [
        (summary.low, summary.high)
        for summary in band.summaries
        if summary.low is not None and summary.high is not None
    ]
    if ends:
        low, high = zip(*ends, strict=True)
        axes.fill_between(band.steps, low, high, color=colour, alpha=0.07, linewidth=0)


SIZE = (5.0, 0.9)
"""Inches: width, and height before any variant is added."""
HEIGHT_OF_ONE = 0.38


def draw_values(rows: list[Row], numbers: dict[str, int], label: str) -> Figure:
    """Mean and 95 % interval of each variant; each seed is a hollow mark.

    Args:
        numbers: index of each variant, as in `Band`.
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
