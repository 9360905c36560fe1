"""What losses need that weigh a response by the log-ratio of the whole response, π to an older policy."""

from __future__ import annotations

from omegaconf import DictConfig

from grpo_verl_ext.catalogue.requires import (
    FULLY_ASYNC_DRIVER,
    ONE_STEP_OFF_DRIVER,
    If,
    In,
    NoneWith,
    Null,
    trainer_of,
)
from grpo_verl_ext.utils.errors import Line
from grpo_verl_ext.utils.keys import BYPASS, CORRECTION, SECTION, setting

ONE_OUTPUT = "its loss is of log π(y), and several outputs of a session are no single y"
"""Why such losses refuse a session with several outputs."""
WEIGHTS = f"{CORRECTION}.rollout_is"
_CACHE = "skip.rollout_tq.enable"
"""verl's key for rollouts of an earlier run, or step, in the place of sampled ones."""

is_stored = If(f"{SECTION}.stored_responses.share")
"""Whether some of the responses were not sampled in this step."""


def several_policies(config: DictConfig) -> bool:
    """Whether the responses to a prompt may come from several policies."""
    trainer = trainer_of(config)
    return trainer == FULLY_ASYNC_DRIVER or trainer.endswith("_async")


def wrote_another_policy(config: DictConfig) -> bool:
    """Whether some responses are of another policy than the one that is trained."""
    is_old = several_policies(config) or trainer_of(config) == ONE_STEP_OFF_DRIVER
    return is_stored(config) or is_old or bool(setting(config, _CACHE))


WHOLE_RESPONSES = NoneWith(
    f"{CORRECTION}.rollout_rs",
    "token",
    "changes the log-ratio of a response, by which the loss weighs all of it",
    refuse=True,
)
"""What is left of a response has another log-ratio, chosen for being small."""

ITS_AGE = In(
    BYPASS,
    (True,),
    "has the old log-probs computed when a response is trained on, by another policy than the one that wrote "
    "it",
    when=wrote_another_policy,
)
"""The ratio is to the policy that wrote a response."""


def no_weights(why: str) -> In:
    """Return the row of a loss that has weights of its own, to the rollout's policy."""
    return Null(WEIGHTS, why, refuse=True, line=Line(f"{WEIGHTS}=null", f"{BYPASS}=true"))
