"""Colours, marks and file output of all figures."""

import io
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
"""Okabe and Ito's palette, which colour-blind readers can tell apart; in grey, dashes and marks differ."""


def looks(number: int) -> dict[str, Any]:
    """Return colour, mark and line style of the variant with that number, the same in each figure."""
    which, styles = number % len(PALETTE), ("-", "--", "-.", ":")
    return {"color": PALETTE[which], "marker": "os^DvPX"[which], "linestyle": styles[number % len(styles)]}


def drawn(figure: Figure, kind: str) -> bytes:
    """Return a figure as ``png`` or ``svg``, with the same bytes for the same numbers."""
    written = io.BytesIO()
    without_date = {"Date": None} if kind == "svg" else {"Software": None}
    with mpl.rc_context({"svg.hashsalt": "grpo_verl_ext", "svg.fonttype": "none"}):
        figure.savefig(written, format=kind, dpi=150, metadata=without_date)
    return written.getvalue()
