"""What can be known before the first round is known before the first round."""

from __future__ import annotations

import dataclasses
import importlib.util
from typing import cast

from hydra.utils import get_method
from omegaconf import DictConfig

from grpo_verl_ext.iterate.plan import Round
from grpo_verl_ext.iterate.reward_training import reward_config
from grpo_verl_ext.iterate.rollouts import Rule, label_of
from grpo_verl_ext.iterate.settings import IterateError, IterateSettings
from grpo_verl_ext.verl_plugin import preflight
from grpo_verl_ext.verl_plugin.composed import CompositionError, composed


def check(settings: IterateSettings) -> tuple[DictConfig, Rule]:
    """verl's configuration of the first round and the rule, after all that could be refused was not.

    Raises:
        IterateError: with the line to type.
    """
    check_trainer(settings)
    rule = the_rule(settings)
    return compose_rounds(settings), rule


def compose_rounds(settings: IterateSettings) -> DictConfig:
    """Compose every kind of round there is; check the first, whose models exist, as verl's driver will."""
    try:
        first = composed(Round(settings, 1).run().arguments())
        preflight.check(first)
        for number in range(2, settings.rounds + 1):
            composed(Round(settings, number).run().arguments())
    except CompositionError as error:
        raise IterateError(f"policy.overrides: verl refuses them: {error}") from error
    except ValueError as error:
        raise IterateError(f"policy.overrides: {error}") from error
    return first


def the_rule(settings: IterateSettings) -> Rule:
    """``reward_model.label``, imported and tried."""
    name = settings.reward_model.label
    try:
        rule = cast(Rule, get_method(name))
        label_of(rule("", "0"))
    except Exception as error:
        raise IterateError(
            f"reward_model.label is {name!r}, which cannot be asked for ('', '0'): {error}. Valid is the "
            f"dotted name of a function of response and ground truth, such as "
            f"grpo_verl_ext.rewards.weighted_sum.rule_score or verl.utils.reward_score.gsm8k.compute_score"
        ) from error
    return rule


def check_trainer(settings: IterateSettings) -> None:
    """TRL is there, and knows every key of ``reward_model.trainer``."""
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
                f"reward_model.trainer.{key} is no field of TRL's RewardConfig; among them are "
                f"learning_rate, num_train_epochs, per_device_train_batch_size. Remove the line"
            )
