"""docs/support.md, written from the table: ``python tests/plugin/support_page.py``."""

from pathlib import Path

from grpo_verl_ext.verl_plugin.preflight.support import TABLE, Cell, Exact, Refused
from grpo_verl_ext.verl_plugin.preflight.training import CONTEXTS, ENGINES, FEATURES, ROLLOUTS, TRAINERS

PAGE = Path(__file__).parents[2] / "docs" / "support.md"

INTRODUCTION = """# What runs exactly where

Each feature of this package under each engine, trainer and way of making rollouts of verl 0.9.1. A cell is
either **exact**, with the number of the test that shows it, or **refused**, with the letter of the message;
there is nothing in between. A training is refused in the driver, before Ray starts; `grpo-verl-ext doctor`
says the same without starting anything. The tables are
[`preflight/support.py`](../grpo_verl_ext/verl_plugin/preflight/support.py); this page is written from them
(`python tests/plugin/support_page.py`).

- *The clipped losses*: `grpo`, `bnpo`, `dapo`, `dapo_per_prompt` and `dr_grpo`. Exact means: value and
  gradient are the paper's at any split into micro-batches and ranks (bnpo depends on it by definition).
- *GVPO, one update per rollout*: `ppo_epochs=1`, all prompts of the rollout in one mini-batch, and
  `parameter_sync_step=1` where the mode has one. The policy has then not moved since the rollout. With
  `bypass_mode` the old log-probs are the rollout engine's, so that it counts as several.
- *GVPO, several updates*: the worker measures how far the policy has moved on each prompt.
- *Dynamic sampling*: `algorithm.filter_groups.enable` with an estimator of this package.

A training that uses none of these is not looked at.

**Why GVPO needs a mode of this package even for one update.** verl calls a registered loss with tokens alone.
Under `sync` a session that fails leaves its prompt with fewer responses, and verl trains on the rest; the
loss would divide by the wrong k − 1 and not know it. So it refuses wherever nobody tells it the groups.

**Where verl's driver does not ask.** Trainings of `verl.experimental.one_step_off_policy` validate their
configuration inside Ray, fully async ones never. Both call `verl.trainer.main_ppo.run_ppo`, where this
package asks. Should that be passed by, too, the first call refuses: the loss gvpo without groups, the
estimator `grpo_process` without steps, the others with `ref_model_sync_steps` or `gvpo_anchor=ref` outside a
mode of this package, and the worker before it measures how far the policy has moved on an engine where
that was not tested.

**What "exact" rests on.** FSDP2 runs in the tests, on the CPU, on one, two and four ranks, and FSDP1 on two.
Megatron, veomni and torchtitan need accelerators, and were not run: the tests read verl's sources, and hold
them to handing a loss the same counts (ranks, tokens and responses of the mini-batch), calling it in the same
way and averaging gradients over ranks. The losses need no more. What does need more, a forward pass between
updates or the parameters themselves, is refused there.

**Several outputs per session.** No setting says that an agent loop answers one of a prompt's `rollout.n`
sessions by several outputs; the first batch shows it. Tests: `tests/plugin/test_rows.py`.

| trainer mode | outcome estimators | `gvpo`, `grpo_process` |
|---|---|---|
| `grpo_ext_sync`, `grpo_ext_colocate_async`, `grpo_ext_separate_async` \
| exact: the last output of a session counts, all learn from it, as with verl's `grpo` \
| **refused** at the first batch |
| `sync`, `colocate_async`, `separate_async` \
| **refused** at the first batch: verl shows an estimator no sessions | **refused** |
| the drivers without a v1 trainer | their agent loops return one output | **refused** in the driver |
"""

KINDS = {
    TRAINERS: "",
    ENGINES: "`any other`: an engine of your own. A loss refuses an engine that does not say the counts.\n\n",
    ROLLOUTS: "`rollout_is`, `rollout_rs` and `bypass_mode` stand under `algorithm.rollout_correction`.\n\n",
}

TESTS = sorted({cell.test for row in TABLE.values() for cell in row.values() if isinstance(cell, Exact)})
REASONS = list(
    dict.fromkeys(
        cell.reason for context in CONTEXTS for cell in TABLE[context].values() if isinstance(cell, Refused)
    )
)


def page() -> str:
    """The whole page."""
    return "".join(
        (
            INTRODUCTION,
            *(_section(kind, remark) for kind, remark in KINDS.items()),
            "\n## Tests\n\n",
            *(f"{number}. `{test}`\n" for number, test in enumerate(TESTS, start=1)),
            "\n## Refusals\n\nA message has key, value, this reason, what is valid, and the line to type.\n",
            "\n| | reason | key, or what is seen | type |\n|---|---|---|---|\n",
            *(_refusals(reason) for reason in REASONS),
        )
    )


def _section(kind: str, remark: str) -> str:
    titles = [feature.title for feature in FEATURES.values()]
    rows = [
        f"| {context.title} | {' | '.join(_cell(TABLE[name][feature]) for feature in FEATURES)} |\n"
        for name, context in CONTEXTS.items()
        if context.kind == kind
    ]
    head = f"| | {' | '.join(titles)} |\n{'|---' * (len(titles) + 1)}|\n"
    return f"\n## {kind}\n\n{remark}{head}{''.join(rows)}"


def _cell(cell: Cell) -> str:
    if isinstance(cell, Exact):
        return f"exact, {TESTS.index(cell.test) + 1}"
    return f"**refused**, {_letter(cell.reason)}"


def _letter(reason: str) -> str:
    return "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[REASONS.index(reason)]


def _refusals(reason: str) -> str:
    """One row for all contexts with the same reason."""
    cells = [
        cell
        for context in CONTEXTS
        for cell in TABLE[context].values()
        if isinstance(cell, Refused) and cell.reason == reason
    ]
    seen = dict.fromkeys(cell.seen or f"`{cell.key}`" for cell in cells)
    lines = dict.fromkeys(f"`{line}`" for cell in cells for line in cell.fix.split(", or "))
    return f"| {_letter(reason)} | {reason} | {', '.join(seen)} | {', or '.join(lines)} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
