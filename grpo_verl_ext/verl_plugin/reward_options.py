"""The sections of ``algorithm.grpo_ext`` that name reward models, read by the manager ``rule_and_model``."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grpo_verl_ext.utils.rules import FACTOR, ON_OR_OFF, POSITIVE, Rule, is_number, key, one_of

PATH = Rule(
    lambda value: isinstance(value, str) and value != "",
    "a folder, or a name on a hub",
    "<folder>",
    nullable=True,
)
URL = Rule(
    lambda value: isinstance(value, str) and bool(re.fullmatch(r"https?://[^/\s].*", value)),
    "an address that begins with https:// or http://",
    "https://HOST:8000",
    nullable=True,
)
VARIABLE = Rule(
    lambda value: isinstance(value, str) and value.isidentifier(),
    "the name of an environment variable",
    "REWARD_TOKEN",
    nullable=True,
)
_RETRIES = Rule(lambda value: is_number(value) and value in range(101), "an integer from 0 to 100", "5")
_DTYPE = one_of("float32", "auto")
_DTYPE_DESCRIPTION = "precision of the model at `path`; auto: its files'"


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
    dtype: str = key("float32", _DTYPE, _DTYPE_DESCRIPTION)
    url: str | None = key(
        None, URL, "a server that speaks vLLM's `/classify` and has the model; null: it is loaded"
    )
    token_env: str | None = key(
        None, VARIABLE, "its value is sent to `url`: `Authorization: Bearer <value>`; null: no header"
    )
    timeout: float = key(300.0, POSITIVE, "seconds that a server may take for one score")
    retries: int = key(5, _RETRIES, "attempts after the first, with pauses of 1, 2, 4, … at most 30 seconds")


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
    dtype: str = key("float32", _DTYPE, _DTYPE_DESCRIPTION)


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
