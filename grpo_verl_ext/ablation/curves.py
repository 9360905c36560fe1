"""Learning curves of the variants with interval bands, as PNG and SVG."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from grpo_verl_ext.ablation.measures import curve
from grpo_verl_ext.ablation.results import Results
from grpo_verl_ext.ablation.statistics import Summary, summarize

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
"""Okabe and Ito's, which colour-blind readers tell apart; in grey the dashes and marks do."""
STYLES = ("-", "--", "-.", ":")
MARKS = ("o", "s", "^", "D", "v", "P", "X")


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
            written += [_save(figure, folder / f"{name}.{kind}") for kind in ("png", "svg")]
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


def _save(figure: Figure, file: Path) -> Path:
    """Whole or not at all, and the same bytes for the same numbers."""
    unfinished = file.with_name(f".{file.stem}.unfinished{file.suffix}")
    without_date = {"Date": None} if file.suffix == ".svg" else {"Software": None}
    with mpl.rc_context({"svg.hashsalt": "grpo_verl_ext", "svg.fonttype": "none"}):
        figure.savefig(unfinished, dpi=150, metadata=without_date)
    os.replace(unfinished, file)
    return file
