"""Print what a training that was repeated has in common with the kept one."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from grpo_verl_ext.ablation.running.reproduce import Difference


def print_made_with(console: Console, changed: Sequence[tuple[str, str, str]]) -> None:
    """Print what the training is made with now, where that is not what the record has."""
    if not changed:
        console.print("model, data, commit, versions and machine are those of the record")
        return
    shown = _table("what differs from the record", ("", "then", "now"))
    for row in changed:
        shown.add_row(*row)
    console.print(shown)


def print_differences(console: Console, found: Sequence[Difference], metrics: Sequence[str]) -> None:
    """Print the first metric that differs and the grid's metrics, and count the others."""
    differing = [each for each in found if each.first is not None]
    if not differing:
        console.print(
            f"all {len(found)} metrics are the same to the bit at every step; those of the machine, such as "
            f"timing_s/step, were not compared"
        )
        return
    first = min(differing, key=lambda each: each.first or 0)
    console.print(
        f"{len(differing)} of {len(found)} metrics differ, first {first.metric} at step {first.first}"
    )
    shown = _table("largest differences", ("metric", "steps", "first step that differs", "difference"))
    for each in found:
        if each.metric in metrics or each is first:
            begins = "–" if each.first is None else str(each.first)
            shown.add_row(each.metric, str(each.steps), begins, f"{each.largest:.3g}")
    console.print(shown)


def _table(title: str, columns: Sequence[str]) -> Table:
    shown = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for column in columns:
        shown.add_column(column, overflow="fold")
    return shown
