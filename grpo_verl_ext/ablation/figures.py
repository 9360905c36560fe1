"""Draw the forest plot of the differences, and learning curves with interval bands.

Each is drawn for a file of its own (PNG and SVG), and small for the page.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from grpo_verl_ext.ablation.measures import Band, bands
from grpo_verl_ext.ablation.report import Difference, Report
from grpo_verl_ext.utils.plotting import line_sample, line_style, save_figure, svg
from grpo_verl_ext.utils.plotting import looks as looks_of

_SMALL = (4.6, 3.4)
"""Inches; readable on a phone."""


def draw(report: Report, folder: Path) -> list[Path]:
    """Write ``forest`` and a ``curve-<metric>`` for each metric that has curves, as PNG and SVG."""
    curves = {
        "curve-" + re.sub(r"[^A-Za-z0-9.-]+", "-", metric): draw_bands(drawn, metric)
        for metric, drawn in report.analysis.curves.items()
        if drawn
    }
    figures = {"forest": forest(report), **curves}
    return [
        save_figure(figure, folder / f"{name}.{kind}")
        for name, figure in figures.items()
        if figure is not None
        for kind in ("png", "svg")
    ]


def draw_bands(drawn: list[Band], label: str) -> Figure:
    """A figure that stands alone, with legend and axis label."""
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    _plot_bands(axes, drawn)
    axes.set(xlabel="step", ylabel=label, title="each seed, mean over seeds, 95 % interval")
    _, labels = axes.get_legend_handles_labels()
    # no wider than the figure: 7 inches hold 100 characters; 10 is a line and a gap
    columns = max(1, min(len(labels), 100 // (max(map(len, labels)) + 10)))
    figure.legend(loc="outside lower center", ncols=columns, frameon=False)
    return figure


def _plot_bands(axes: Axes, drawn: list[Band], *, log: bool = False) -> None:
    """Thin lines for seeds, a thick line for their mean, a band for its 95 % interval.

    The vertical axis covers the seeds; with few seeds the interval is wider and leaves it.
    """
    for band in drawn:
        looks, style = looks_of(band.number), line_style(band.number)
        # One line with gaps, for a line of its own for each of hundreds of seeds takes seconds.
        seeds = np.pad(band.seeds, ((0, 0), (0, 1)), constant_values=math.nan)
        steps = [*band.steps, math.nan] * len(band.seeds)
        axes.plot(steps, seeds.ravel(), color=looks["color"], linewidth=0.6, alpha=0.5)
        label = f"{band.variant}, seeds: {len(band.seeds)}"
        axes.plot(band.steps, band.mean, linestyle=style, markersize=4, label=label, **looks)
        if len(band.seeds) > 1:
            axes.fill_between(band.steps, band.low, band.high, color=looks["color"], alpha=0.07, linewidth=0)
    values = np.concatenate([band.seeds.ravel() for band in drawn])
    shown = values[np.isfinite(values)]
    low, high = (shown.min(), shown.max()) if len(shown) else (0.0, 0.0)
    if log and low > 0:
        axes.set_yscale("log")
        axes.set_ylim(low / 1.2, high * 1.2)
    elif high > low:
        axes.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)


_SIZE = (4.6, 0.6)
"""Inches: width, and height before any row is added."""
_HEIGHT_OF_ONE = 0.6
_ABOVE, BELOW = 0.27, 0.2
"""Parts of a row between its interval and its name, and between its interval and the marks of its starts."""


def forest(report: Report) -> Figure | None:
    """Each difference with its interval and its starts (hollow), over 0 and ±margin; None without any."""
    analysis, rows = report.analysis, report.differences
    if all(row.mean is None for row in rows):
        return None
    figure = Figure(figsize=(_SIZE[0], _SIZE[1] + _HEIGHT_OF_ONE * len(rows)), layout="constrained")
    axes = figure.subplots()
    margin = analysis.results.settings.margin
    if analysis.verdicts and margin is not None:
        axes.axvspan(-margin, margin, color="#dfe3e8", linewidth=0)
    axes.axvline(0, color="#555555", linewidth=1)
    # A difference of differences is of no one variant, and looks like none.
    names = list(dict.fromkeys([*analysis.results.variants, *(row.variant for row in rows)]))
    for place, row in enumerate(rows):
        _plot_difference(axes, place, row, looks_of(names.index(row.variant)))
    axes.set_yticks([])
    axes.set_ylim(len(rows) - 0.55, -0.55)
    axes.grid(axis="x", alpha=0.3)
    axes.set_xlabel(f"difference, {report.compared}", wrap=True)
    return figure


def _plot_difference(axes: Axes, place: int, row: Difference, looks: dict[str, Any]) -> None:
    axes.axhline(place + 0.45, color="#d5d9de", linewidth=0.5)
    across = axes.get_yaxis_transform()  # x in parts of the width
    axes.text(0.01, place - _ABOVE, row.name, transform=across, verticalalignment="center", in_layout=False)
    starts = list(row.by_seed.values())
    hollow: dict[str, Any] = {"linestyle": "", "fillstyle": "none", "markersize": 4, "alpha": 0.7}
    axes.plot(starts, [place + BELOW] * len(starts), **hollow, **looks)
    if row.low is not None and row.high is not None:
        axes.plot([row.low, row.high], [place, place], linewidth=2, color=looks["color"])
    if row.mean is not None:
        axes.plot([row.mean], [place], markersize=8, **looks)


@dataclass(frozen=True)
class _Picture:
    """A figure inside the page, which has its legend and its label."""

    about: str
    source: str
    """An SVG as ``data:`` URI."""


def pictures_of(report: Report, behaviour: Mapping[str, str]) -> dict[str, list[_Picture]]:
    """Draw what the page shows: the forest, the curves, the behaviour, and a line of each variant.

    Args:
        behaviour: further metrics and their labels; where it ends with (*), the axis is logarithmic.
    """
    results, margin = report.analysis.results, report.analysis.results.settings.margin
    about = f"mean difference with its {100 * report.confidence:g} % interval; hollow: each start"
    shaded = report.analysis.verdicts and margin is not None
    about += f"; shaded: the margin, ±{margin:g}" if shaded else ""
    whole = forest(report)
    further = {label: bands(results, metric) for metric, label in behaviour.items()}
    return {
        "forest": [_picture(whole, about)] if whole else [],
        "curves": [_small(drawn, metric) for metric, drawn in report.analysis.curves.items() if drawn],
        "behaviour": [_small(drawn, label) for label, drawn in further.items() if drawn],
        "legend": [_picture(line_sample(number), name) for number, name in enumerate(results.variants)],
    }


def _small(drawn: list[Band], label: str) -> _Picture:
    figure = Figure(figsize=_SMALL, layout="constrained")
    axes = figure.subplots()
    _plot_bands(axes, drawn, log=label.endswith("(*)"))
    axes.set(xlabel="step")
    return _picture(figure, label)


def _picture(figure: Figure, about: str) -> _Picture:
    return _Picture(about, "data:image/svg+xml;base64," + base64.b64encode(svg(figure)).decode())
