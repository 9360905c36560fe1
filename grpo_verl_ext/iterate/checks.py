"""Check the settings before the first round, so that no round fails on a mistake that was visible before."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable
from typing import cast

from hydra.utils import get_method
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from grpo_verl_ext.iterate.preferences import Rule, label_of
from grpo_verl_ext.iterate.reward_training import reward_config
from grpo_verl_ext.iterate.settings import IterateError, IterateSettings, Round
from grpo_verl_ext.verl_plugin import preflight
from grpo_verl_ext.verl_plugin.compose import CompositionError, composed
from grpo_verl_ext.verl_plugin.preflight.rewards import check_reward_model


def compose(settings: IterateSettings) -> DictConfig:
    """Compose verl's configuration of every round, and return that of the first.

    Raises:
        IterateError: verl would refuse one of them.
    """
    try:
        first, *others = (
            composed(Round(settings, number).run().arguments()) for number in range(1, settings.rounds + 1)
        )
    except CompositionError as error:
        raise IterateError(f"policy.overrides: verl refuses them: {error}") from error
    if settings.reward_model.served == "server":
        for config in others:
            _as_iterate_error(check_reward_model, config)
    return first


def check(settings: IterateSettings, config: DictConfig) -> Rule:
    """Refuse settings that verl's driver, TRL or the rule would refuse later, and return the rule.

    Args:
        config: verl's configuration of the first round, whose models and data exist.

    Raises:
        IterateError: the message has the line to type.
    """
    check_trainer(settings)
    rule = the_rule(settings)
    _as_iterate_error(preflight.check, config)
    return rule


def _as_iterate_error(check_one: Callable[[DictConfig], None], config: DictConfig) -> None:
    try:
        check_one(config)
    except (ValueError, OmegaConfBaseException) as error:
        raise IterateError(f"policy.overrides: {error}") from error


def the_rule(settings: IterateSettings) -> Rule:
    """Import the rule that ``reward_model.label`` names, try it once, and return it."""
    name = settings.reward_model.label
    try:
        rule = cast(Rule, get_method(name))
        label_of(rule("", "0"))
    except Exception as error:
        raise IterateError(
            f"reward_model.label is {name!r}, which cannot be asked for ('', '0'): {error}. Valid is the "
            f"dotted name of a function of response and ground truth, such as "
            f"grpo_verl_ext.rewards.rules.correctness or verl.utils.reward_score.gsm8k.compute_score"
        ) from error
    return rule


def check_trainer(settings: IterateSettings) -> None:
    """Refuse settings if TRL is missing or does not know a key of ``reward_model.trainer``."""
    if importlib.util.find_spec("trl") is None:
        raise IterateError(
            "the reward model is trained by trl, which is not installed. "
            "Type: pip install 'grpo-verl-ext[iterate]'"
        )
    from trl import RewardConfig

    valid = {field.name for field in dataclasses.fields(RewardConfig) if field.init}
    for key in reward_config(settings.reward_model.trainer, output_dir="", seed=0):
        if key not in valid:
            raise IterateError(
                f"reward_model.trainer.{key} is not a field of TRL's RewardConfig; among them are "
                f"learning_rate, num_train_epochs, per_device_train_batch_size. Remove the line"
            )
