"""Draw the two figures of ``grpo-verl-ext anatomy``, as PNG and SVG."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from grpo_verl_ext.anatomy.bins import Cells, alike
from grpo_verl_ext.utils.plotting import line_style, looks, save


def draw(cells: Cells, folder: Path) -> list[Path]:
    """Write the figures ``anatomy-weight-by-length`` and ``anatomy-gradient-share``; return their paths."""
    figures = {
        "anatomy-weight-by-length": weight_by_length(cells),
        "anatomy-gradient-share": gradient_share(cells),
    }
    return [
        save(figure, folder / f"{name}.{kind}") for name, figure in figures.items() for kind in ("png", "svg")
    ]


def weight_by_length(cells: Cells) -> Figure:
    """Draw the weight of a token over the response length, in one panel each for right and wrong answers."""
    figure = Figure(figsize=(8.5, 4.4), layout="constrained")
    panels = figure.subplots(1, 2)
    variants = alike(cells.by_both)
    for axes, right, word in zip(panels, (True, False), ("right", "wrong"), strict=True):
        there = [cell for cell in cells.by_both if cell.right is right and cell.responses]
        axes.axhline(1, color="0.6", linewidth=0.8)
        for number, names in enumerate(variants):
            axes.plot(
                [cell.mean_length for cell in there],
                [cell.weight[names[0]] for cell in there],
                **looks(number),
                linestyle=line_style(number),
                markersize=5,
                label=", ".join(names),
            )
        axes.set(title=f"{word} answers", xlabel="length of the response, tokens")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("weight of a token (1: the average token)")
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(variants), frameon=False
    )
    return figure


def gradient_share(cells: Cells) -> Figure:
    """Draw each length's share of responses and tokens (bars) and of each variant's gradient (marks)."""
    figure = Figure(figsize=(8, 4.4), layout="constrained")
    axes = figure.subplots()
    bins = cells.by_length
    places = range(len(bins))
    total = {what: sum(getattr(cell, what) for cell in bins) for what in ("responses", "tokens")}
    for what, shift, colour in (("responses", -0.2, "0.88"), ("tokens", 0.2, "0.75")):
        heights = [getattr(cell, what) / total[what] for cell in bins]
        axes.bar([place + shift for place in places], heights, 0.4, color=colour, label=f"share of {what}")
    variants = alike(cells.by_length)
    for number, names in enumerate(variants):
        shift = 0.64 * ((number + 0.5) / len(variants) - 0.5)
        axes.plot(
            [place + shift for place in places],
            [cell.share[names[0]] for cell in bins],
            **looks(number),
            linestyle="",
            markersize=8,
            label=", ".join(names),
        )
    axes.set_xticks(list(places), [cell.lengths for cell in bins])
    axes.set(
        xlabel="length of the response, tokens",
        ylabel="share",
        title="marks: share of the gradient, Σ|weight|",
    )
    axes.yaxis.set_major_formatter("{x:.0%}")
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    return figure
