"""What all figures share: colours, dashes and marks that everybody can tell apart, and whole files."""

from __future__ import annotations

import os
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
"""Okabe and Ito's, which colour-blind readers tell apart; in grey the dashes and marks do."""
STYLES = ("-", "--", "-.", ":")
MARKS = ("o", "s", "^", "D", "v", "P", "X")


def save(figure: Figure, file: Path) -> Path:
    """Whole or not at all, and the same bytes for the same numbers."""
    unfinished = file.with_name(f".{file.stem}.unfinished{file.suffix}")
    without_date = {"Date": None} if file.suffix == ".svg" else {"Software": None}
    with mpl.rc_context({"svg.hashsalt": "grpo_verl_ext", "svg.fonttype": "none"}):
        figure.savefig(unfinished, dpi=150, metadata=without_date)
    os.replace(unfinished, file)
    return file
