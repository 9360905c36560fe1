"""Write ``report.html``: one self-contained file without scripts or network access, with its pictures in it.

They are the forest plot of the differences, and learning curves with interval bands.
"""

from __future__ import annotations

import base64
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from grpo_verl_ext.ablation.measures import CONFIDENCE, curves_by_variant, interval
from grpo_verl_ext.ablation.report import Report
from grpo_verl_ext.ablation.verdicts import VerdictOutcome
from grpo_verl_ext.utils.files import write_whole
from grpo_verl_ext.utils.plotting import drawn, looks

_GREEN, _PURPLE = "#00694a", "#6b2d73"
COLOURS: dict[str, str] = {
    **{VerdictOutcome.SHOWN: _GREEN, VerdictOutcome.OPPOSITE: "#a8201a", VerdictOutcome.EQUAL: "#00589b"},
    **{VerdictOutcome.UNDECIDED: "#7a5200", VerdictOutcome.BLIND: _PURPLE},
    **{VerdictOutcome.NOT_EXERCISED: _PURPLE, "control shown": _GREEN, "control missed": _PURPLE},
    "exploratory": "#57606a",
}
"""Background of a statement's label; white has a contrast of more than 4.5 on each."""


def write_page(report: Report, folder: Path) -> Path:
    """Write the page, whole or not at all; all values are escaped, and what does not show is `visible`."""
    environment = Environment(
        loader=PackageLoader("grpo_verl_ext", "ablation"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: visible(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    results, settings = report.results, report.results.settings
    made_with = [
        f"commit {run.record.git_revision or 'unknown'}; "
        + ", ".join(f"{name} {version}" for name, version in run.record.versions.items())
        + f"; {run.record.machine}" * (run.record.machine is not None)
        for run in results.runs
        if run.record is not None
    ]
    learnt = dict.fromkeys([report.compared.metric, *settings.metrics])
    title = ", ".join(results.variants)
    page = environment.get_template("page.html.jinja").render(
        report=report,
        title=title if len(title) < 200 else f"{title[:200]}…",
        settings=settings,
        colours=COLOURS,
        runs=report.asked_for,
        made_with=dict.fromkeys(made_with),
        finished=len(results.compared),
        forest=_picture(forest(report)),
        level=1 - settings.alpha if report.verdicts else CONFIDENCE,
        curves={metric: _picture(_curves(report, metric)) for metric in learnt},
        legend={name: _picture(_line_sample(number)) for number, name in enumerate(results.variants)},
    )
    write_whole(folder / "report.html", page)
    return folder / "report.html"


def visible(text: str) -> str:
    """Replace control, direction, surrogate and private characters by their code point, such as ⟨U+202E⟩."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in "\n\t" else f"⟨U+{ord(each):04X}⟩" for each in text)


def _curves(report: Report, metric: str) -> Figure | None:
    """Thin lines for seeds, a thick line for their mean, a band for its 95 % interval; None without a curve.

    The vertical axis covers the seeds; with few seeds the interval is wider and leaves it.
    """
    curves = curves_by_variant(report.results, metric)
    figure = Figure(figsize=(4.6, 3.4), layout="constrained")  # inches; readable on a phone
    axes = figure.subplots()
    looks_of = {name: looks(number) for number, name in enumerate(report.results.variants)}
    for variant, seeds in curves.items():
        axes.plot(seeds, color=looks_of[variant]["color"], linewidth=0.6, alpha=0.5)
        axes.plot(seeds.mean(axis=1, skipna=False), markersize=4, **looks_of[variant])
    axes.set_ylim(axes.get_ylim())
    for variant, seeds in curves.items():
        *_, low, high = interval(seeds.to_numpy(), CONFIDENCE)
        axes.fill_between(seeds.index, low, high, color=looks_of[variant]["color"], alpha=0.07, linewidth=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.set(xlabel="step")
    return figure if curves else None


def forest(report: Report) -> Figure | None:
    """Each difference with its interval and its starts (hollow), over 0 and ±margin; None without any."""
    rows = report.differences
    if all(found.difference is None for *_, found in rows):
        return None
    figure = Figure(figsize=(4.6, 0.6 + 0.6 * len(rows)), layout="constrained")
    axes = figure.subplots()
    margin = report.results.settings.margin
    if report.verdicts and margin is not None:
        axes.axvspan(-margin, margin, color="#dfe3e8", linewidth=0)
    axes.axvline(0, color="#555555", linewidth=1)
    across = axes.get_yaxis_transform()  # x in parts of the width
    # A difference of differences is of no one variant, and looks like none.
    names = list(dict.fromkeys([*report.results.variants, *(variant for _, variant, _ in rows)]))
    for place, (name, variant, found) in enumerate(rows):
        own = {**looks(names.index(variant)), "linestyle": ""}
        axes.axhline(place + 0.45, color="#d5d9de", linewidth=0.5)
        axes.text(0.01, place - 0.27, name, transform=across, verticalalignment="center", in_layout=False)
        starts = [*found.by_seed.values()]
        axes.plot(starts, [place + 0.2] * len(starts), fillstyle="none", markersize=4, alpha=0.7, **own)
        if found.low is not None and found.high is not None:
            axes.plot([found.low, found.high], [place, place], linewidth=2, color=own["color"])
        if found.difference is not None:
            axes.plot([found.difference], [place], markersize=8, **own)
    axes.set_yticks([])
    axes.set_ylim(len(rows) - 0.55, -0.55)
    axes.grid(axis="x", alpha=0.3)
    axes.set_xlabel(f"difference, {report.compared}", wrap=True)
    return figure


def _line_sample(number: int) -> Figure:
    """A short piece of a variant's line, for the legend."""
    figure = Figure(figsize=(0.5, 0.16))
    figure.add_artist(Line2D([0.02, 0.5, 0.98], [0.5] * 3, markevery=[1], markersize=5, **looks(number)))
    return figure


def _picture(figure: Figure | None) -> str | None:
    """An SVG as ``data:`` URI."""
    if figure is None:
        return None
    return "data:image/svg+xml;base64," + base64.b64encode(drawn(figure, "svg")).decode()
