"""Write docs/support.md from the rows: ``python tests/helpers/write_support_page.py``."""

from pathlib import Path

from grpo_verl_ext.catalogue.requires import If, In, Where
from grpo_verl_ext.preflight.tested_values import all_needs

PAGE = Path(__file__).parents[2] / "docs" / "support.md"

INTRODUCTION = """# Support

Each feature, estimator and loss lists the values of verl's keys with which it was tested. With another value
a training is warned, or refused before Ray starts where the fault would be silent or the gradient another.
`algorithm.grpo_ext.silence=[NAME]` skips the rows of a name (`catalogue/requires.py`).

| Name | Key | Tested with | Otherwise |
|---|---|---|---|
"""

DETAILS = """
A trainer mode of your own is yours to test: nothing is said of one that neither verl nor this package has.
Where no driver asks, a loss or estimator refuses at its first call.

- *Exact* means that value and gradient are the paper's at any split into micro-batches and ranks (`bnpo`
  depends on it by definition): `tests/proof/test_invariance.py`, `tests/preflight/test_exactness.py`.
- FSDP2 is tested on one, two and four CPU ranks, FSDP1 on two. Megatron, veomni and torchtitan were not run:
  there losses of tokens get the same counts and averaged gradients, by verl's sources.
- GVPO needs a `grpo_ext_…` mode even for one update: under `sync` a failed session leaves a prompt fewer
  responses, and the loss the wrong k − 1.
- Several outputs per session are exact for outcome estimators with losses of tokens in the `grpo_ext_…`
  modes (the last counts, all learn), else refused.

Written by `python tests/helpers/write_support_page.py`.
"""


def page() -> str:
    """The whole page."""
    lines = dict.fromkeys(line_of(name, row) for name, rows in all_needs() for row in rows)
    return f"{INTRODUCTION}{''.join(lines)}{DETAILS}"


def line_of(name: str, row: In) -> str:
    """A row of the table."""
    outside = f"{'refused' if row.refuse else 'warned'}: {row.why}".replace("|", r"\|")
    return f"| {name} | `{row.key}` | {row.tested}{condition(row)} | {outside} |\n"


def condition(row: In) -> str:
    """When the row holds, from the docstring of its condition."""
    if row.when is None:
        return ""
    if isinstance(row.when, Where):
        return f", if {row.when.words}"
    text = str(row.when) if isinstance(row.when, If) else str(row.when.__doc__).strip()
    return ", if " + text.removeprefix("Whether ").partition("\n")[0].rstrip(".").replace("``", "`")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
