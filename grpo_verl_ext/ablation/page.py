"""Write ``report.html``: one self-contained file without scripts or network access, with its pictures in it.

They are the forest plot of the differences, and learning curves with interval bands.
"""

from __future__ import annotations

import base64
import math
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from grpo_verl_ext.ablation.measures import CONFIDENCE, Band, bands
from grpo_verl_ext.ablation.report import Difference, Report
from grpo_verl_ext.ablation.verdicts import VerdictOutcome
from grpo_verl_ext.utils.files import write_whole
from grpo_verl_ext.utils.plotting import line_sample, line_style, svg
from grpo_verl_ext.utils.plotting import looks as looks_of

_PAGE = "report.html"
_NAMED = 6
"""Largest number of variants that the title names."""
_GREEN, _PURPLE = "#00694a", "#6b2d73"
COLOURS: dict[str, str] = {
    **{VerdictOutcome.SHOWN: _GREEN, VerdictOutcome.OPPOSITE: "#a8201a", VerdictOutcome.EQUAL: "#00589b"},
    **{VerdictOutcome.UNDECIDED: "#7a5200", VerdictOutcome.BLIND: _PURPLE},
    **{VerdictOutcome.NOT_EXERCISED: _PURPLE, "control shown": _GREEN, "control missed": _PURPLE},
    "exploratory": "#57606a",
}
"""Background of a statement's label; white has a contrast of more than 4.5 on each."""

_BEHAVIOUR = {
    "response_length/mean": "length of responses, tokens",
    "actor/entropy_per_token": "entropy of the policy, nats a token",
    "actor/pg_clipfrac": "tokens whose ratio is clipped, share",
    "actor/ppo_kl": "KL to the policy of the rollout (k1), nats a token",
    "actor/kl_loss": "KL to the reference, nats (*)",
    "actor/grad_norm": "norm of the gradient (*)",
    # not response_length/clip_ratio: those as long as the longest of the batch (losses.mini_batch)
    "actor/frac_truncated": "truncated responses, share (this package's losses)",
}
"""Metrics of the page's section on behaviour, in its order. (*): the scale depends on the variant's
aggregation (`actor.loss_agg_mode`), hence a logarithmic axis."""


def write_page(report: Report, folder: Path) -> Path:
    """Write the page, whole or not at all.

    All values are escaped, and invisible characters replaced by their code point.
    """
    # For hundreds of runs these are some 10 MB; joined as text they would take twice that.
    write_whole(folder / _PAGE, b"".join(piece.encode() for piece in _pieces(report)))
    return folder / _PAGE


def _pieces(report: Report) -> Iterator[str]:
    environment = Environment(
        loader=PackageLoader("grpo_verl_ext", "ablation"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: visible(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    results = report.results
    title = ", ".join(results.variants)
    if len(results.variants) > _NAMED:
        title = f"{len(results.variants)} variants of {' × '.join(results.settings.axes)}"
    made_with = [
        f"commit {record.git_revision or 'unknown'}; "
        + ", ".join(f"{name} {version}" for name, version in record.versions.items())
        + f"; {record.machine}" * (record.machine is not None)
        for record in (run.record for run in results.runs)
        if record is not None
    ]
    behaviour = {
        label: bands(results, name) for name, label in _BEHAVIOUR.items() if name not in report.curves
    }
    return environment.get_template("page.html.jinja").generate(
        report=report,
        title=title,
        settings=results.settings,
        colours=COLOURS,
        runs=report.asked_for,
        made_with=dict.fromkeys(made_with),
        finished=len(results.compared),
        forest=_forest_picture(report),
        curves=[_small(drawn, metric) for metric, drawn in report.curves.items() if drawn],
        behaviour=[_small(drawn, label) for label, drawn in behaviour.items() if drawn],
        legend=[_picture(line_sample(number), name) for number, name in enumerate(results.variants)],
    )


_KEPT = "\n\t"


def visible(text: str) -> str:
    """Replace control, direction, surrogate and private characters by their code point, such as ⟨U+202E⟩.

    HTML's special characters are left to the template's escaping.
    """
    return text if text.isprintable() else "".join(map(_named, text))


def _named(character: str) -> str:
    if character in _KEPT or not unicodedata.category(character).startswith("C"):
        return character
    return f"⟨U+{ord(character):04X}⟩"


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
    rows = report.differences
    if all(row.mean is None for row in rows):
        return None
    figure = Figure(figsize=(_SIZE[0], _SIZE[1] + _HEIGHT_OF_ONE * len(rows)), layout="constrained")
    axes = figure.subplots()
    margin = report.results.settings.margin
    if report.verdicts and margin is not None:
        axes.axvspan(-margin, margin, color="#dfe3e8", linewidth=0)
    axes.axvline(0, color="#555555", linewidth=1)
    # A difference of differences is of no one variant, and looks like none.
    names = list(dict.fromkeys([*report.results.variants, *(row.variant for row in rows)]))
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


def _forest_picture(report: Report) -> _Picture | None:
    figure, margin = forest(report), report.results.settings.margin
    level = 1 - report.results.settings.alpha if report.verdicts else CONFIDENCE
    about = f"mean difference with its {100 * level:g} % interval; hollow: each start"
    about += f"; shaded: the margin, ±{margin:g}" if report.verdicts and margin is not None else ""
    return None if figure is None else _picture(figure, about)


def _small(drawn: list[Band], label: str) -> _Picture:
    figure = Figure(figsize=(4.6, 3.4), layout="constrained")  # inches; readable on a phone
    axes = figure.subplots()
    _plot_bands(axes, drawn, log=label.endswith("(*)"))
    axes.set(xlabel="step")
    return _picture(figure, label)


def _picture(figure: Figure, about: str) -> _Picture:
    return _Picture(about, "data:image/svg+xml;base64," + base64.b64encode(svg(figure)).decode())
