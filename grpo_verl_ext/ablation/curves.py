"""Learning curves of the variants with interval bands, as PNG and SVG."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from grpo_verl_ext.ablation.measures import curve
from grpo_verl_ext.ablation.results import Results
from grpo_verl_ext.ablation.statistics import Summary, summarize
from grpo_verl_ext.figures import COLOURS, MARKS, STYLES, save


@dataclass(frozen=True)
class Band:
    """One variant over its finished seeds, at the steps that all of them measured."""

    variant: str
    steps: list[int]
    summaries: list[Summary]


def bands(results: Results, metric: str) -> list[Band]:
    """The curves of a metric, the baseline first; variants without it are left out."""
    found = []
    for variant in results.variants:
        curves = [dict(curve(run.metrics, metric)) for run in results.finished(variant)]
        steps = sorted(set.intersection(*(set(each) for each in curves))) if curves else []
        if steps:
            found.append(Band(variant, steps, [summarize([each[step] for each in curves]) for step in steps]))
    return found


def draw(results: Results, folder: Path) -> list[Path]:
    """A figure for each metric that there are curves of: ``curve-<metric>.png`` and ``.svg``."""
    written = []
    for metric in results.settings.metrics:
        drawn = bands(results, metric)
        if drawn:
            figure = _figure(drawn, metric)
            name = "curve-" + re.sub(r"[^A-Za-z0-9.-]+", "-", metric)
            written += [save(figure, folder / f"{name}.{kind}") for kind in ("png", "svg")]
    return written


def _figure(drawn: list[Band], metric: str) -> Figure:
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    for number, band in enumerate(drawn):
        colour = COLOURS[number % len(COLOURS)]
        axes.plot(
            band.steps,
            [summary.mean for summary in band.summaries],
            color=colour,
            linestyle=STYLES[number % len(STYLES)],
            marker=MARKS[number % len(MARKS)],
            markersize=4,
            label=f"{band.variant}, seeds: {band.summaries[0].seeds}",
        )
        low = [summary.mean if summary.low is None else summary.low for summary in band.summaries]
        high = [summary.mean if summary.high is None else summary.high for summary in band.summaries]
        axes.fill_between(band.steps, low, high, color=colour, alpha=0.12, linewidth=0)
    axes.set(xlabel="step", ylabel=metric, title="mean over seeds, 95 % interval")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=min(len(drawn), 4), frameon=False)
    return figure
