"""Checks of losses that weigh a response by the log-ratio of the whole response, π to an older policy."""

from __future__ import annotations

from collections.abc import Iterator

from omegaconf import DictConfig

from grpo_verl_ext.catalogue.record import Refuse
from grpo_verl_ext.utils.errors import Line, Problem, SettingError
from grpo_verl_ext.utils.keys import BYPASS, CORRECTION, FULLY_ASYNC, MODE, ONE_STEP_OFF, SECTION, setting

ONE_OUTPUT = "its loss is of log π(y), and several outputs of a session are no single y"
"""Why such losses refuse a session with several outputs."""
_WEIGHTS, _REJECTION = f"{CORRECTION}.rollout_is", f"{CORRECTION}.rollout_rs"
_STORED = f"{SECTION}.stored_responses"
_CACHE = "skip.rollout_tq.enable"
"""verl's key for rollouts of an earlier run, or step, in the place of sampled ones."""


def no_token_weights(why: str, *, has_rollouts_ratio: bool = True) -> Refuse:
    """Return a check that refuses weights of tokens.

    Args:
        why: what the loss has in their place, with its paper.
        has_rollouts_ratio: in bypass mode, the loss itself corrects for the rollout's policy.
    """
    valid = "null; with bypass_mode, the loss itself has the rollout's log-probs"
    bypass = [f"{BYPASS}=true"] if has_rollouts_ratio else []

    def check(config: DictConfig) -> None:
        if setting(config, _WEIGHTS) is not None:
            raise SettingError(
                _WEIGHTS,
                setting(config, _WEIGHTS),
                why=why,
                valid=valid if has_rollouts_ratio else "null",
                fix=Line(f"{_WEIGHTS}=null", *bypass),
            )

    return check


def criteria_of_rejection(config: DictConfig) -> list[str]:
    """Return verl's criteria, one comma-separated text, by which tokens or sequences are rejected."""
    return [name for each in str(setting(config, _REJECTION, "")).split(",") if (name := each.strip())]


def no_token_rejection(config: DictConfig) -> None:
    """Refuse rejection of tokens: what is left of a response has another log-ratio, chosen for being small.

    Raises:
        SettingError: ``rollout_rs`` has a criterion of tokens.
    """
    if any(each.startswith("token") for each in criteria_of_rejection(config)):
        raise SettingError(
            _REJECTION,
            setting(config, _REJECTION),
            why="the loss weighs a response by the log-ratio of all its tokens, which rejected tokens would "
            "change",
            valid="criteria of sequences, or null",
            fix=Line(f"{_REJECTION}=null"),
        )


def is_stored(config: DictConfig) -> bool:
    """Whether some of the responses were not sampled in this step."""
    return bool(setting(config, f"{_STORED}.share", 0))


def several_policies(config: DictConfig) -> str:
    """Return the trainer if the responses to a prompt may come from several policies; else an empty text."""
    if FULLY_ASYNC in config:
        return "verl.experimental.fully_async_policy"
    mode = str(setting(config, MODE, ""))
    is_main = setting(config, "trainer.use_v1", True) and ONE_STEP_OFF not in config
    return f"{MODE}={mode}" if is_main and mode.endswith("_async") else ""


def older_policy(config: DictConfig) -> str:
    """Return why responses may be of an older policy than the one that is trained: a trainer, a cache, ""."""
    one_step = "verl.experimental.one_step_off_policy" if ONE_STEP_OFF in config else ""
    cached = f"{_CACHE}=true" if setting(config, _CACHE) else ""
    return several_policies(config) or one_step or cached


def advise_age(config: DictConfig) -> Iterator[Problem]:
    """Warn of responses older than the policy of their old log-probs, whose age is then in no ratio."""
    if is_stored(config) and setting(config, f"{_STORED}.old_log_probs", "actor") != "recorded":
        key = f"{_STORED}.old_log_probs"
        yield Problem(
            key,
            "actor",
            why="the loss's ratio is then 1 for stored responses at the first update, whoever wrote them",
            valid="recorded, with responses that have log-probs",
            fix=Line(f"{key}=recorded"),
        )
    trainer = older_policy(config)
    if trainer and not setting(config, BYPASS):
        yield Problem(
            BYPASS,
            False,
            why=f"with {trainer} verl computes the old log-probs of a response when it is trained on, so "
            "that the loss's ratio is not to the policy that wrote it, which may be an older one",
            valid="true",
            fix=Line(f"{BYPASS}=true"),
        )
