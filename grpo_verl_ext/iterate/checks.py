"""Check the settings before the first round, so that no round fails on a mistake that was visible before."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import cast

from hydra.utils import get_method
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from grpo_verl_ext import preflight
from grpo_verl_ext.iterate.examples import (
    LabelRule,
    StepRule,
    example_kind,
    label_of,
    labelled,
    read_examples,
)
from grpo_verl_ext.iterate.reward_training import trainer_fields
from grpo_verl_ext.iterate.settings import IterateError, IterateSettings, Round
from grpo_verl_ext.rewards import functions
from grpo_verl_ext.utils.console import line_to_install
from grpo_verl_ext.utils.keys import ACTOR, setting
from grpo_verl_ext.verl_plugin.compose import CompositionError, composed
from grpo_verl_ext.verl_plugin.reference.checks import has_adapter
from grpo_verl_ext.verl_plugin.rewards.checks import check_reward_model
from grpo_verl_ext.verl_plugin.steps.checks import check_step_use


def compose_rounds(settings: IterateSettings) -> DictConfig:
    """Compose verl's configuration of every round, and return that of the first.

    Raises:
        IterateError: verl would refuse one of them, or no round could follow.
    """
    try:
        first, *others = (
            composed(Round(settings, number).run().arguments()) for number in range(1, settings.rounds + 1)
        )
    except CompositionError as error:
        raise IterateError(f"policy.overrides: verl refuses them: {error}") from error
    _check_merged(first)
    if any(setting(config, _MANAGER) == _WITH_MODEL for config in (first, *others)):
        _check_manager(composed([*settings.policy.overrides]))
    if settings.reward_model.served == "server":
        for config in others:
            _as_iterate_error(check_reward_model, config)
    if settings.reward_model.step_label is not None:
        for config in others:
            _as_iterate_error(check_step_use, config)
    return first


_MANAGER, _WITH_MODEL = "reward.reward_manager.name", "rule_and_model"


def _check_manager(config: DictConfig) -> None:
    """Refuse a reward manager of the user's, in whose place a round with a reward model has another."""
    manager = setting(config, _MANAGER)
    if manager not in ("naive", _WITH_MODEL):
        raise IterateError(
            f"policy.overrides: {_MANAGER} is {manager}, but rounds with a reward model have {_WITH_MODEL}, "
            f"which would leave out what {manager} adds to the reward, such as a punishment. Type: "
            f"{_MANAGER}=naive, or reward_model.weight=0"
        )


def _check_merged(config: DictConfig) -> None:
    """Refuse a policy of which verl's merger gives no model that the next round could begin with."""
    if has_adapter(config):
        raise IterateError(
            "policy.overrides: the policy is trained by LoRA, and verl's merger takes the adapter out of it: "
            "the next round would begin with the model from before this one. Type: "
            "actor_rollout_ref.model.lora_rank=0"
        )
    strategy = setting(config, f"{ACTOR}.strategy")
    if strategy not in ("fsdp", "fsdp2"):
        raise IterateError(
            f"policy.overrides: {ACTOR}.strategy is {strategy}; valid are fsdp and fsdp2, whose checkpoints "
            f"are merged after each round. Type: {ACTOR}.strategy=fsdp2"
        )


def checked_rule(settings: IterateSettings, config: DictConfig) -> Callable[..., object]:
    """Refuse settings that verl's driver, TRL or the rule would refuse later, and return the rule.

    Args:
        config: verl's configuration of the first round, whose models and data exist.

    Raises:
        IterateError: the message has the line to type.
    """
    check_trainer(settings)
    check_replayed(settings)
    rule: Callable[..., object]
    if settings.reward_model.step_label is None:
        rule = the_rule(settings)
    else:
        rule = the_step_rule(settings.reward_model.step_label)
    _as_iterate_error(preflight.check_training, config)
    return rule


def _as_iterate_error(check_one: Callable[[DictConfig], None], config: DictConfig) -> None:
    try:
        check_one(config)
    except (ValueError, OmegaConfBaseException) as error:
        raise IterateError(f"policy.overrides: {error}") from error


def the_rule(settings: IterateSettings) -> LabelRule:
    """Import the rule that ``reward_model.label`` names, try it once, and return it."""
    name = settings.reward_model.label or ""
    try:
        rule = cast(LabelRule, get_method(name))
        label_of(rule("", "0"))
    except Exception as error:
        raise IterateError(
            f"reward_model.label is {name!r}, which cannot be asked for ('', '0'): {error}. Valid is the "
            f"dotted name of a function of response and ground truth, such as "
            f"grpo_verl_ext.rewards.rules.correctness or verl.utils.reward_score.gsm8k.compute_score"
        ) from error
    return rule


def the_step_rule(name: str) -> StepRule:
    """Import the function that ``reward_model.step_label`` names, try it once, and return it."""
    try:
        rule = functions.load_function(name)
        labelled(rule, "1+1=?", "", "0")
    except Exception as error:
        raise IterateError(
            f"reward_model.step_label is {name!r}, which cannot be asked for an empty response: {error}. "
            "Valid is a reward function that returns step_rewards and step_ends, my_package.rewards.f or "
            "path/to/file.py:f, such as grpo_verl_ext.rewards.steps.compute_score"
        ) from error
    return rule


def check_replayed(settings: IterateSettings) -> None:
    """Refuse ``reward_model.replay_from`` if it has no pairs (``step_label``: steps) or would not be read."""
    file = settings.reward_model.replay_from
    if file is None:
        return
    if settings.reward_model.replay == 0:
        raise IterateError(
            f"reward_model.replay_from is {file!r}, but reward_model.replay is 0: none of its pairs would be "
            "replayed. Type: reward_model.replay=0.1, or reward_model.replay_from=null"
        )
    if not Path(file).is_file():
        raise IterateError(
            f"reward_model.replay_from is {file!r}, and there is no such file; valid is the pairs.jsonl of a "
            "round of another run. Type: reward_model.replay_from=<folder>/round-1/pairs.jsonl, or =null"
        )
    read_examples(Path(file), example_kind(settings.reward_model))


def check_trainer(settings: IterateSettings) -> None:
    """Refuse settings if TRL is missing or does not know a key of ``reward_model.trainer``."""
    if importlib.util.find_spec("trl") is None:
        raise IterateError(
            f"the reward model is trained by trl, which is not installed. Type: {line_to_install('iterate')}"
        )
    given, steps = settings.reward_model.trainer, settings.reward_model.step_label is not None
    fields = trainer_fields(given, steps=steps, output_dir="", seed=0)
    if steps:
        from trl.experimental.prm import PRMConfig as Config
    else:
        from trl import RewardConfig as Config
    if steps and fields["step_separator"]:
        raise IterateError(
            f"reward_model.trainer.step_separator is {given['step_separator']!r}, but the steps end "
            "where reward_model.step_label says, and are scored without one. Remove the line"
        )
    valid = {field.name for field in dataclasses.fields(Config) if field.init}
    for key in fields:
        if key not in valid:
            raise IterateError(
                f"reward_model.trainer.{key} is not a field of TRL's {Config.__name__}; among them are "
                f"learning_rate, num_train_epochs, per_device_train_batch_size. Remove the line"
            )
