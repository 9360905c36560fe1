"""Write docs/settings.md from the fields of the settings: ``python tests/helpers/write_settings_page.py``."""

from dataclasses import fields
from pathlib import Path
from typing import Any

from verl.workers.config import PolicyLossConfig

from grpo_verl_ext.verl_plugin.config import (
    ACTOR,
    AGENT_LOOPS,
    DESCRIPTION,
    REWARD_MANAGER,
    ROLLOUT,
    RULE,
    SECTION,
    SECTIONS,
    TRAINER_MODES,
    Options,
    Rule,
)
from grpo_verl_ext.verl_plugin.errors import as_typed
from grpo_verl_ext.verl_plugin.loss_config import LossConfig

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"

INTRODUCTION = """# Settings

Every key and value that this package adds to verl's configuration. A [preset](index.md) sets what its paper
fixes; a key that no preset has set needs a `+`. Estimators and losses can be mixed, except pairs, as GVPO's.

Written by `python tests/helpers/write_settings_page.py`.
"""

OF_THE_LOSS = f"""## The losses' options

Keys of `{ACTOR}.policy_loss`. verl's own class refuses them, so presets set
`_target_: {LossConfig.__module__}.{LossConfig.__qualname__}`.
"""


def page() -> str:
    """The text of the page."""
    verls = {field.name for field in fields(PolicyLossConfig)}
    parts = [
        INTRODUCTION,
        "## Values of verl's keys\n",
        _table(("key", "values of this package"), _values()),
        f"## `{SECTION}`\n",
        _table(
            KEYS,
            [
                *_rows(Options, without=set(SECTIONS)),
                *(row for name, each in SECTIONS.items() for row in _rows(each, f"{name}.")),
            ],
        ),
        OF_THE_LOSS,
        _table(KEYS, _rows(LossConfig, without=verls)),
    ]
    return "\n".join(parts).rstrip() + "\n"


def _values() -> list[tuple[str, str]]:
    return [
        (
            f"`algorithm.adv_estimator`; `loss_mode`, `loss_agg_mode`, `loss_scale_factor` of `{ACTOR}`",
            "each [algorithm's page](index.md) has its own; `grpo-verl-ext doctor` lists the names",
        ),
        (
            "`trainer.v1.trainer_mode`",
            f"{_names(TRAINER_MODES)}: verl's, with whole prompts in each optimizer step",
        ),
        (
            f"`{ROLLOUT}.agent.default_agent_loop`",
            f"{_names(AGENT_LOOPS.values())}: verl's, with step rewards",
        ),
        (
            "`reward.reward_manager.name`",
            f"`{REWARD_MANAGER}`: function and [reward model](iterative.md)",
        ),
        (
            "`reward.custom_reward_function.path`",
            "`pkg://grpo_verl_ext.rewards.weighted_sum`: named rewards with weights",
        ),
    ]


KEYS = ("key", "default, other values", "what it does")


def _rows(settings: Any, prefix: str = "", without: set[str] = frozenset()) -> list[tuple[str, ...]]:  # type: ignore[assignment]
    rows = []
    for field in fields(settings):
        if field.name not in without:
            rule: Rule = field.metadata[RULE]
            default = as_typed([*field.default] if isinstance(field.default, tuple) else field.default)
            if isinstance(rule.valid, str):
                valid = f"`{default}`; {rule.valid.removesuffix(', or null')}"
            else:
                valid = _names((default, *(name for name in rule.valid if name != default)))
            rows.append((f"`{prefix}{field.name}`", valid, field.metadata[DESCRIPTION]))
    return rows


def _names(names: Any) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _table(head: tuple[str, ...], rows: Any) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
