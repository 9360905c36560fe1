"""Colours, marks and file output of all figures."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from grpo_verl_ext.utils.files import write_whole

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
"""Okabe and Ito's palette, which colour-blind readers can tell apart; in grey, dashes and marks differ."""
_STYLES = ("-", "--", "-.", ":")
_MARKS = ("o", "s", "^", "D", "v", "P", "X")

_DPI = 150
_SAME_EACH_TIME = {"svg.hashsalt": "grpo_verl_ext", "svg.fonttype": "none"}


def looks(number: int) -> dict[str, Any]:
    """Return colour and mark of the variant with that number, the same in each figure."""
    return {"color": PALETTE[number % len(PALETTE)], "marker": _MARKS[number % len(_MARKS)]}


def line_style(number: int) -> str:
    """Return the line style of the variant with that number, the same in each figure."""
    return _STYLES[number % len(_STYLES)]


def line_sample(number: int) -> Figure:
    """Draw a short piece of a variant's line, for a legend outside of the figure."""
    figure = Figure(figsize=(0.5, 0.16))
    line = Line2D(
        [0.02, 0.5, 0.98], [0.5, 0.5, 0.5], linestyle=line_style(number), markevery=[1], markersize=5
    )
    line.set(**looks(number))
    figure.add_artist(line)
    return figure


def save_figure(figure: Figure, file: Path) -> Path:
    """Write a figure as PNG or SVG atomically, with the same bytes for the same numbers."""
    write_whole(file, _drawn(figure, file.suffix.removeprefix(".")))
    return file


def svg(figure: Figure) -> bytes:
    """Return the SVG that `save_figure` would write."""
    return _drawn(figure, "svg")


def _drawn(figure: Figure, kind: str) -> bytes:
    _lay_out(figure)
    written = io.BytesIO()
    without_date = {"Date": None} if kind == "svg" else {"Software": None}
    with mpl.rc_context(_SAME_EACH_TIME):
        figure.savefig(written, format=kind, dpi=_DPI, metadata=without_date)
    return written.getvalue()


def _lay_out(figure: Figure) -> None:
    """Lay the figure out once: ``savefig`` would for each format, and draw all of it in vain each time."""
    engine = figure.get_layout_engine()
    if engine is not None:
        figure.set_dpi(_DPI)
        engine.execute(figure)
        figure.set_layout_engine(None)
