"""Write docs/settings.md from the fields of the settings: ``python tests/helpers/write_settings_page.py``."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grpo_verl_ext import catalogue
from grpo_verl_ext.catalogue.requires import OUR_MODES
from grpo_verl_ext.utils.errors import as_typed
from grpo_verl_ext.utils.keys import ACTOR, ESTIMATOR, LOSS, REWARD_MANAGER, ROLLOUT, SECTION
from grpo_verl_ext.utils.options import Section
from grpo_verl_ext.verl_plugin.config import AGENT_LOOPS, Options
from grpo_verl_ext.verl_plugin.loss_config import LossConfig, option_models

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"

INTRODUCTION = """# Settings

Every key and value that this package adds to verl's configuration. A [preset](papers.md) sets what its paper
fixes. Estimators and losses can be mixed, except pairs such as GVPO's. A key that no preset has set needs a
`+`.
"""

OF_THE_LOSS = f"""## The losses' options

Keys of `{ACTOR}.policy_loss`. verl's own class refuses them, so presets set
`_target_: {LossConfig.__module__}.{LossConfig.__qualname__}`.
"""


def page() -> str:
    """The text of the page."""
    parts = [
        INTRODUCTION,
        "## Values of verl's keys\n",
        _table(("key", "values of this package"), _values()),
        f"## `{SECTION}`\n",
        _keys(_rows(Options)),
        OF_THE_LOSS,
        _keys(row for model in option_models() for row in _rows(model)),
    ]
    return "\n".join(parts).rstrip() + "\n\nWritten by `python tests/helpers/write_settings_page.py`.\n"


def _values() -> list[tuple[str, str]]:
    return [
        (f"`{ESTIMATOR}`", _names(catalogue.ESTIMATORS)),
        (f"`{LOSS}`", _names(catalogue.LOSSES)),
        (
            "`trainer.v1.trainer_mode`",
            f"{_names(OUR_MODES)}: verl's, with whole prompts in each optimizer step, step rewards, "
            "reference refresh and `training_reward/…`, the reward function's numbers",
        ),
        (
            f"`{ROLLOUT}.agent.default_agent_loop`",
            f"{_names(AGENT_LOOPS.values())}: verl's, with step rewards and seeds",
        ),
        ("`reward.reward_manager.name`", f"`{REWARD_MANAGER}`: function and [reward model](rewards.md)"),
        (
            "`reward.custom_reward_function.path`",
            "`pkg://grpo_verl_ext.rewards.weighted_sum`: [rewards](rewards.md) with weights",
        ),
    ]


def _keys(rows: Iterator[tuple[str, str, str]]) -> str:
    return _table(("key", "default, other values", "what it does"), rows)


def _rows(model: type[Section]) -> Iterator[tuple[str, str, str]]:
    """Key, values and description of each field; the keys of a nested section follow it."""
    for key, (section, name) in model.all_keys("").items():
        field = section.model_fields[name]
        default = as_typed([*field.default] if isinstance(field.default, tuple) else field.default)
        yield (
            f"`{key}`",
            _valid(default, section.said(name)["valid"]),
            (field.description or "").replace("|", r"\|"),
        )


def _valid(default: str, valid: str | tuple[str, ...]) -> str:
    if isinstance(valid, str):
        return f"`{default}`; {valid.removesuffix(', or null')}"
    return _names((default, *(name for name in valid if name != default)))


def _names(names: Any) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _table(head: tuple[str, ...], rows: Any) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
