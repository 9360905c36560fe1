"""Write docs/support.md from `support_table`: ``python tests/helpers/write_support_page.py``."""

from collections.abc import Mapping
from pathlib import Path

from support_table import (
    CONTEXT_TITLES,
    EVERYWHERE,
    FEATURE_TITLES,
    PAIRS,
    TABLE,
    Cell,
    Exact,
)

from grpo_verl_ext.verl_plugin.features import Refusal

PAGE = Path(__file__).parents[2] / "docs" / "support.md"

INTRODUCTION = """# What runs exactly where

What is exact under each engine, trainer and rollout of verl 0.9.1: ✓ with the number of the [test](#tests)
that shows it, or ✗ with the letter of the [reason](#refusals) for which it is refused before Ray starts.
Written by `python tests/helpers/write_support_page.py` from
[`preflight/support.py`](../grpo_verl_ext/preflight/support.py).
"""

DETAILS = """
## What the names mean

- *Exact*: value and gradient are the paper's at any split into micro-batches and ranks (`bnpo` depends on it
  by definition).
- *Losses of tokens*: all but `gvpo`, presets on verl's losses included. Of these `gmpo`, `gspo`, `luspo`,
  `kimi`, `topr` and `vespo` refuse token rejection and several outputs per session, which `dapo_per_prompt`
  refuses, too; the last three also refuse `rollout_is`.
- *GVPO, one update per rollout*: `ppo_epochs=1`, one mini-batch per rollout, `parameter_sync_step=1` where
  the mode has it, no `bypass_mode`.
- *`gvpo_anchor`*: the anchor alone; what GVPO's columns refuse is refused with every anchor.
- *Any other*: an engine of your own. `rollout_is`, `bypass_mode`: under `algorithm.rollout_correction`.


GVPO needs a `grpo_ext_…` mode even for one update: under `sync` a failed session leaves a prompt fewer
responses, and the loss the wrong k − 1. `gold_responses` and `rewarded_responses` need such a mode,
`seed_requests` `sync` or `grpo_ext_sync`. Where no driver asks, loss, estimator or worker refuses at its
first call.

FSDP2 is tested on one, two and four CPU ranks, FSDP1 on two. Megatron, veomni and torchtitan were not run:
tests read in verl's sources that losses get the same counts and averaged gradients.

Several outputs per session: exact for outcome estimators with losses of tokens in the `grpo_ext_…` modes
(the last counts, all learn), else refused.
"""

LINES = (
    *("anchor_old", "stored_responses", "recorded", "history"),
    *("dynamic_sampling", "mask_truncated_completions"),
)
"""Features with the same cell in almost every context, written below the table."""
MEASUREMENT = ("gold_responses", "rewarded_responses", "seed_requests")
"""Features that are no algorithm, for which a sentence is enough."""
TITLES = {name: title for titles in CONTEXT_TITLES.values() for name, title in titles.items()}
COLUMNS = [name for name in FEATURE_TITLES if name not in (*LINES, *MEASUREMENT)]
ROWS = [*TABLE.values(), *PAIRS.values()]
SHOWN = [cell for row in ROWS for name, cell in row.items() if name not in MEASUREMENT]
TESTS = sorted({cell.test for cell in SHOWN if isinstance(cell, Exact)})
REASONS = list(dict.fromkeys(cell.reason for cell in SHOWN if isinstance(cell, Refusal)))


def page() -> str:
    """The whole page."""
    return "".join(
        (
            INTRODUCTION,
            "\n## The table\n\n",
            f"| | {' | '.join(FEATURE_TITLES[name] for name in COLUMNS)} |\n",
            f"{'|---' * (len(COLUMNS) + 1)}|\n",
            *(_rows(titles) for titles in CONTEXT_TITLES.values()),
            "\n",
            *(_line(name) for name in LINES),
            "\nUnder two of these at once a feature is refused where one of them refuses it, and also:\n\n",
            *(_pair(pair) for pair in PAIRS),
            "\n## Refusals\n\n",
            *(f"- **{_letter(reason)}**: {reason}\n" for reason in REASONS),
            DETAILS,
            "\n## Tests\n\n",
            *(f"{number}. `{test}`\n" for number, test in enumerate(TESTS, start=1)),
        )
    )


def _rows(titles: Mapping[str, str]) -> str:
    """Contexts with the same cells share a row."""
    rows: dict[str, list[str]] = {}
    for name, title in titles.items():
        cells = " | ".join(_cell(TABLE[name][feature]) for feature in COLUMNS)
        rows.setdefault(cells, []).append(title)
    return "".join(f"| {'<br>'.join(shared)} | {cells} |\n" for cells, shared in rows.items())


def _line(feature: str) -> str:
    """A feature with one cell almost everywhere, as a sentence."""
    everywhere = _cell(Exact(EVERYWHERE[feature]))
    others: dict[str, list[str]] = {}
    for name, title in TITLES.items():
        cell = _cell(TABLE[name][feature])
        if cell != everywhere:
            others.setdefault(cell, []).append(title)
    but = "; ".join(f"{cell} under {', '.join(titles)}" for cell, titles in others.items())
    return f"- {FEATURE_TITLES[feature]}: {everywhere}; {but}\n"


def _pair(pair: tuple[str, str]) -> str:
    """What two contexts refuse together, as a sentence."""
    titles = " and ".join(TITLES[name] for name in pair)
    return (
        f"- {titles}: "
        + ", ".join(f"{FEATURE_TITLES[name]} {_cell(cell)}" for name, cell in PAIRS[pair].items())
        + "\n"
    )


def _cell(cell: Cell) -> str:
    if isinstance(cell, Exact):
        return f"✓ {TESTS.index(cell.test) + 1}"
    return f"✗ **{_letter(cell.reason)}**"


def _letter(reason: str) -> str:
    return "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[REASONS.index(reason)]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
