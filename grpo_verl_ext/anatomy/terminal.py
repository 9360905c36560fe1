"""Report of ``grpo-verl-ext anatomy``: tables on the terminal, figures, and everything as JSON."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from rich.console import JustifyMethod
from rich.table import Table

from grpo_verl_ext.anatomy.bins import Cell, Cells, alike
from grpo_verl_ext.anatomy.kl_estimators import KlReport
from grpo_verl_ext.anatomy.measure import Anatomy, AnatomySettings, anatomy_of
from grpo_verl_ext.anatomy.plots import draw
from grpo_verl_ext.utils.console import make_console, print_table
from grpo_verl_ext.utils.documents import numbers_as_text
from grpo_verl_ext.utils.files import write_whole


def run_anatomy(settings: AnatomySettings) -> None:
    """Run `anatomy_of`, print its tables, and write JSON and figures to the folder ``settings.out``.

    Raises:
        AnatomyError: see `anatomy_of`.
    """
    anatomy = anatomy_of(settings)
    console = make_console()
    print_table(console, weight_table(anatomy.cells))
    print_table(console, share_table(anatomy.cells))
    if anatomy.kl is not None:
        print_table(console, kl_table(anatomy.kl))
    for line in lines(anatomy):
        console.print(line, markup=False)
    for file in write_files(settings, anatomy):
        console.print(str(file), markup=False)


def weight_table(cells: Cells) -> Table:
    """Return the table of token weights, with a row for each length and answer."""
    table = Table(title="Weight of a token, |−∂L/∂log π|; 1.00 is the average token of its variant")
    variants = alike(cells.by_both)
    _add_columns(table, ["length", "answer", "count"], variants)
    for cell in cells.by_both:
        weights = [_number(cell.weight[names[0]]) for names in variants]
        table.add_row(cell.lengths, _answer(cell), str(cell.responses), *weights)
    return table


def share_table(cells: Cells) -> Table:
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


def kl_table(kl: KlReport) -> Table:
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


def write_files(settings: AnatomySettings, anatomy: Anatomy) -> list[Path]:
    """Write ``anatomy.json`` and the figures; return their paths."""
    settings.out.mkdir(parents=True, exist_ok=True)
    content = {"settings": asdict(settings), **asdict(anatomy)}
    file = settings.out / "anatomy.json"
    write_whole(file, numbers_as_text(content))
    return [file, *draw(anatomy.cells, settings.out)]


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
