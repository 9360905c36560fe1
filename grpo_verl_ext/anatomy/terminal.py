"""Report of ``grpo-verl-ext anatomy``: tables on the terminal, figures, and everything as JSON."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from matplotlib.figure import Figure
from rich.console import JustifyMethod
from rich.table import Table

from grpo_verl_ext.anatomy.kl_estimators import KlReport
from grpo_verl_ext.anatomy.measure import Anatomy, AnatomySettings, anatomy_of
from grpo_verl_ext.anatomy.weights import Cell, Cells, alike
from grpo_verl_ext.utils.console import make_console, print_table
from grpo_verl_ext.utils.documents import numbers_as_text
from grpo_verl_ext.utils.files import write_whole
from grpo_verl_ext.utils.plotting import line_style, looks, save_figure


def run_anatomy(settings: AnatomySettings) -> None:
    """Run `anatomy_of`, print its tables, and write JSON and figures to the folder ``settings.out``.

    Raises:
        AnatomyError: see `anatomy_of`.
    """
    anatomy = anatomy_of(settings)
    console = make_console()
    print_table(console, _weight_table(anatomy.cells))
    print_table(console, _share_table(anatomy.cells))
    if anatomy.kl is not None:
        print_table(console, _kl_table(anatomy.kl))
    for line in lines(anatomy):
        console.print(line)
    for file in _write_files(settings, anatomy):
        console.print(str(file))


def _weight_table(cells: Cells) -> Table:
    """Return the table of token weights, with a row for each length and answer."""
    table = Table(title="Weight of a token, |−∂L/∂log π|; 1.00 is the average token of its variant")
    variants = alike(cells.by_both)
    _add_columns(table, ["length", "answer", "count"], variants)
    for cell in cells.by_both:
        weights = [_number(cell.weight[names[0]]) for names in variants]
        table.add_row(cell.lengths, _answer(cell), str(cell.responses), *weights)
    return table


def _share_table(cells: Cells) -> Table:
    """Return the table of gradient shares: a row for each length, then for right and for wrong answers."""
    table = Table(title="Share of the gradient, Σ|weight|, in %, next to that of responses and of tokens")
    variants = alike([*cells.by_length, *cells.by_answer])
    _add_columns(table, ["length", "responses", "tokens"], variants)
    responses = sum(cell.responses for cell in cells.by_length)
    tokens = sum(cell.tokens for cell in cells.by_length)
    for section in (cells.by_length, cells.by_answer):
        for cell in section:
            of_variants = (cell.share[names[0]] for names in variants)
            shares = (cell.responses / responses, cell.tokens / tokens, *of_variants)
            name = cell.lengths if cell.right is None else _answer(cell)
            table.add_row(name, *(f"{100 * share:.1f}" for share in shares))
        table.add_section()
    return table


def _kl_table(kl: KlReport) -> Table:
    """Return the table of KL estimators, in expectation over the vocabulary, with a row for each."""
    table = Table(title="KL estimators: mean value, and mean gradient in a loss")
    for name in ("", "nats per token", "bias, % of the KL", "gradient's error", "its cosine"):
        table.add_column(name, justify="right" if name else "left", overflow="fold")
    for name, bias in kl.estimators.items():
        relative = 100 * bias.value_bias / kl.kl if kl.kl else None
        numbers = (_number(relative, 1), _number(bias.gradient_error), _number(bias.cosine))
        table.add_row(name, f"{bias.value:.5f}", *numbers)
    return table


def lines(anatomy: Anatomy) -> list[str]:
    """Return the totals and warnings that are printed below the tables."""
    groups = sum(step.groups for step in anatomy.steps)
    without = sum(step.without_signal for step in anatomy.steps)
    words = [
        f"Responses: {anatomy.responses}; tokens: {anatomy.tokens}; steps: {len(anatomy.steps)}.",
        f"Groups with equal scores, of weight 0 in every variant: {without} of {groups}, "
        f"{100 * without / groups:.1f} %.",
    ]
    if anatomy.kl is not None:
        words.append(
            f"KL(policy ‖ reference): {anatomy.kl.kl:.5f} nats per token; responses: "
            f"{anatomy.kl.responses}, positions: {anatomy.kl.positions}."
        )
    return words + anatomy.warnings


def _write_files(settings: AnatomySettings, anatomy: Anatomy) -> list[Path]:
    settings.out.mkdir(parents=True, exist_ok=True)
    content = {"settings": asdict(settings), **asdict(anatomy)}
    file = settings.out / "anatomy.json"
    write_whole(file, numbers_as_text(content))
    return [file, *_draw_figures(anatomy.cells, settings.out)]


def _add_columns(table: Table, first: list[str], variants: list[list[str]]) -> None:
    """Add columns of these names, then one for each list of variants that weigh alike."""
    for heading in (*first, *("\n".join(names) for names in variants)):
        # Names are folded, since a narrow terminal would cut some of them to the same beginning.
        justify: JustifyMethod = "left" if heading in ("length", "answer") else "right"
        table.add_column(heading.replace("_per_", "_per\n_"), justify=justify, overflow="fold")


def _answer(cell: Cell) -> str:
    return "right" if cell.right else "wrong"


def _number(value: float | None, digits: int = 2) -> str:
    # Adding 0 removes the sign of a negative zero.
    return "–" if value is None else f"{round(value, digits) + 0.0:.{digits}f}"


def _draw_figures(cells: Cells, folder: Path) -> list[Path]:
    figures = {
        "anatomy-weight-by-length": _weight_by_length(cells),
        "anatomy-gradient-share": _gradient_share(cells),
    }
    return [
        save_figure(figure, folder / f"{name}.{kind}")
        for name, figure in figures.items()
        for kind in ("png", "svg")
    ]


def _weight_by_length(cells: Cells) -> Figure:
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


def _gradient_share(cells: Cells) -> Figure:
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
