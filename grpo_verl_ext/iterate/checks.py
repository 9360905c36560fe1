"""Check the settings before the first round, so that no round fails on a mistake that was visible before."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable
from pathlib import Path

from hydra.utils import get_method
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from grpo_verl_ext import catalogue, preflight
from grpo_verl_ext.catalogue.grpo import GRPO
from grpo_verl_ext.catalogue.grpo_process import GRPO_PROCESS
from grpo_verl_ext.iterate.examples import Pair, Rule, Steps, label_of, read_examples, steps_of
from grpo_verl_ext.iterate.reward_training import of_trl
from grpo_verl_ext.iterate.settings import IterateError, IterateSettings, RewardModelSettings, Round
from grpo_verl_ext.rewards import functions
from grpo_verl_ext.utils.console import line_to_install
from grpo_verl_ext.utils.keys import ACTOR, setting
from grpo_verl_ext.verl_plugin.compose import CompositionError, composed

_MANAGER, _WITH_MODEL = "reward.reward_manager.name", "rule_and_model"


def compose_rounds(settings: IterateSettings) -> DictConfig:
    """Compose verl's configuration of every round, and return that of the first.

    Raises:
        IterateError: verl would refuse one of them, or no round could follow.
    """
    numbers = range(1, settings.rounds + 1)
    try:
        rounds = [composed(Round(settings, number).run().arguments()) for number in numbers]
        manager = setting(composed([*settings.policy.overrides]), _MANAGER)
    except CompositionError as error:
        raise IterateError(f"policy.overrides: verl refuses them: {error}") from error
    asks_model = any(setting(config, _MANAGER) == _WITH_MODEL for config in rounds)
    strategy = setting(rounds[0], f"{ACTOR}.strategy")
    lora = (f"actor_rollout_ref.model.{key}" for key in ("lora_rank", "lora.rank", "lora_adapter_path"))
    if any(setting(rounds[0], key) for key in lora):
        raise IterateError(
            "policy.overrides: the policy is trained by LoRA, and verl's merger takes the adapter out of it. "
            "Type: actor_rollout_ref.model.lora_rank=0"
        )
    if strategy not in ("fsdp", "fsdp2"):
        raise IterateError(
            f"policy.overrides: {ACTOR}.strategy is {strategy}; valid are fsdp and fsdp2, whose checkpoints "
            f"are merged. Type: {ACTOR}.strategy=fsdp2"
        )
    if asks_model and manager not in ("naive", _WITH_MODEL):
        raise IterateError(
            f"policy.overrides: {_MANAGER} is {manager}, but rounds with a reward model have {_WITH_MODEL}, "
            f"without what {manager} adds. Type: {_MANAGER}=naive, or reward_model.weight=0"
        )
    of_steps = settings.reward_model.step_label is not None
    if asks_model and catalogue.learns_from_steps(rounds[0]) != of_steps:
        raise IterateError(
            f"policy.overrides: algorithm.adv_estimator is {rounds[0].algorithm.adv_estimator}, which learns "
            f"nothing from the model of reward_model.{'step_label' if of_steps else 'label'}. Type: "
            f"+algo={(GRPO_PROCESS if of_steps else GRPO).name}"
        )
    return rounds[0]


def _as_iterate_error(check_one: Callable[[DictConfig], None], config: DictConfig) -> None:
    try:
        check_one(config)
    except (ValueError, OmegaConfBaseException) as error:
        raise IterateError(f"policy.overrides: {error}") from error


def checked_rule(settings: IterateSettings, config: DictConfig) -> Rule:
    """Refuse settings that verl's driver, TRL or the rule would refuse later, and return the rule.

    Args:
        config: verl's configuration of the first round, whose models and data exist.

    Raises:
        IterateError: the message has the line to type.
    """
    check_trainer(settings.reward_model)
    if file := settings.reward_model.replay_from:
        read_examples(Path(file), Pair if settings.reward_model.step_label is None else Steps)
    rule = the_rule(settings.reward_model)
    _as_iterate_error(preflight.check_training, config)
    return rule


def the_rule(reward: RewardModelSettings) -> Rule:
    """Import the function that ``label`` or ``step_label`` names, try it once, and return it."""
    key, name = ("label", reward.label) if reward.step_label is None else ("step_label", reward.step_label)
    try:
        if key == "label":
            rule: Rule = get_method(name)
            label_of(rule("", "0"))
        else:
            rule = functions.load_function(str(name))
            steps_of(rule, "1+1=?", "", "0")
    except Exception as error:
        valid = "grpo_verl_ext.rewards." + ("rules.correctness" if key == "label" else "steps.compute_score")
        raise IterateError(
            f"reward_model.{key} is {name!r}, which cannot be asked for an empty response: {error}. Type: "
            f"reward_model.{key}={valid}, or a function of your own like it"
        ) from error
    return rule


def check_trainer(reward: RewardModelSettings) -> None:
    """Refuse settings if TRL is missing or does not know a key of ``reward_model.trainer``."""
    if importlib.util.find_spec("trl") is None:
        raise IterateError(
            f"the reward model is trained by trl, which is not installed. Type: {line_to_install('iterate')}"
        )
    steps = reward.step_label is not None
    _, config_class, fields = of_trl(reward.trainer, steps=steps, output_dir="", seed=0)
    if fields.get("step_separator"):
        raise IterateError(
            f"reward_model.trainer.step_separator is {fields['step_separator']!r}, but the steps end where "
            "reward_model.step_label says, and are scored without one. Remove the line"
        )
    for key in fields.keys() - {each.name for each in dataclasses.fields(config_class) if each.init}:
        raise IterateError(
            f"reward_model.trainer.{key} is not a field of TRL's {config_class.__name__}; among them are "
            "learning_rate, num_train_epochs, per_device_train_batch_size. Remove the line"
        )
