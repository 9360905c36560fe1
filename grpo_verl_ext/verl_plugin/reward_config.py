"""The sections of ``algorithm.grpo_ext`` that name reward models, read by the manager ``rule_and_model``."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grpo_verl_ext.verl_plugin.rules import FACTOR, ON_OR_OFF, Rule, key, one_of

PATH = Rule(
    lambda value: isinstance(value, str) and value != "",
    "a folder, or a name on a hub",
    "<folder>",
    nullable=True,
)
DTYPE = one_of("float32", "auto")
DTYPE_DESCRIPTION = "precision of the model at `path`; auto: its files'"


@dataclass(frozen=True)
class ClassifierOptions:
    """A classifier with one output that scores whole responses; an entry of ``reward_models``."""

    path: str | None = key(
        None, PATH, "needed: classifier with one output, loaded by verl's reward processes"
    )
    weight: float = key(1.0, FACTOR, "factor of the model's score")
    chat_template: bool = key(
        False, ON_OR_OFF, "the model reads the chat in its own template; false: text without special tokens"
    )
    dtype: str = key("float32", DTYPE, DTYPE_DESCRIPTION)


@dataclass(frozen=True)
class RewardModelOptions(ClassifierOptions):
    """The section ``reward_model``: a model, loaded or served by verl, and the reward function's factor."""

    path: str | None = key(
        None,
        PATH,
        "classifier with one output, loaded by verl's reward processes; null: verl's server, "
        "`reward.reward_model`",
    )
    rule_weight: float = key(1.0, FACTOR, "factor of the reward function's score; 0: it is not called")


@dataclass(frozen=True)
class StepRewardModelOptions:
    """The section ``step_reward_model``: a model that scores the steps of a response."""

    path: str | None = key(
        None, PATH, "token classifier with two outputs (wrong, right), loaded by verl's reward processes"
    )
    weight: float = key(1.0, FACTOR, "factor of the model's P(right) of a step")
    rule_weight: float = key(
        1.0, FACTOR, "factor of the reward function's `step_rewards`; 0: `step_ends` alone are needed"
    )
    dtype: str = key("float32", DTYPE, DTYPE_DESCRIPTION)


def are_named_sections(value: Any) -> bool:
    """Whether the value is a mapping of identifiers, which name metrics, to sections."""
    return (
        isinstance(value, Mapping)
        and bool(value)
        and all(
            isinstance(name, str) and name.isidentifier() and isinstance(section, Mapping)
            for name, section in value.items()
        )
    )
