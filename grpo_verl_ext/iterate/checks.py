"""Check the settings before the first round, so that no round fails on a mistake that was visible before."""

from __future__ import annotations

import inspect
from pathlib import Path

from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from grpo_verl_ext import catalogue, preflight
from grpo_verl_ext.catalogue.grpo import GRPO
from grpo_verl_ext.catalogue.grpo_process import GRPO_PROCESS
from grpo_verl_ext.catalogue.requires import In
from grpo_verl_ext.iterate.examples import Pair, Rule, Steps, make_pairs, make_steps, read_examples
from grpo_verl_ext.iterate.reward_training import of_trl
from grpo_verl_ext.iterate.settings import IterateError, IterateSettings, RewardModelSettings, Round
from grpo_verl_ext.rewards import functions
from grpo_verl_ext.runs.metrics import Response
from grpo_verl_ext.utils.keys import ACTOR
from grpo_verl_ext.verl_plugin.compose import CompositionError, composed

_MERGED = (
    *(
        In(f"actor_rollout_ref.model.{key}", (off, None), "verl's merger takes out of the policy")
        for key, off in (("lora_rank", 0), ("lora.rank", 0), ("lora_adapter_path", None))
    ),
    In(f"{ACTOR}.strategy", ("fsdp2", "fsdp"), "writes checkpoints that are not merged"),
)
_WITH_MODEL = "rule_and_model"
_MANAGER = In(
    "reward.reward_manager.name",
    ("naive", _WITH_MODEL),
    f"is replaced by {_WITH_MODEL} in rounds with a reward model, unless reward_model.weight=0",
)


def compose_rounds(settings: IterateSettings) -> DictConfig:
    """Compose verl's configuration of every round, and return that of the first.

    Raises:
        IterateError: verl would refuse one of them, or no round could follow.
    """
    numbers = range(1, settings.rounds + 1)
    try:
        rounds = [composed(Round(settings, number).run().arguments()) for number in numbers]
        own = composed([*settings.policy.overrides])
    except CompositionError as error:
        raise IterateError(f"policy.overrides: verl refuses them: {error}") from error
    asks_model = any(_MANAGER.value(config) == _WITH_MODEL for config in rounds)
    for row in (*_MERGED, _MANAGER) if asks_model else _MERGED:
        if found := row.unmet("iterate", own):
            raise IterateError(f"policy.overrides: {found.problem}")
    of_steps = settings.reward_model.step_label is not None
    if asks_model and catalogue.learns_from_steps(own) != of_steps:
        raise IterateError(
            f"policy.overrides: algorithm.adv_estimator is {own.algorithm.adv_estimator}, which learns "
            f"nothing from the model of reward_model.{'step_label' if of_steps else 'label'}. Type: "
            f"+algo={(GRPO_PROCESS if of_steps else GRPO).name}"
        )
    return rounds[0]


def checked_rule(settings: IterateSettings, config: DictConfig) -> Rule:
    """Refuse settings that verl's driver, TRL or the rule would refuse later, and return the rule.

    Args:
        config: verl's configuration of the first round, whose models and data exist.

    Raises:
        IterateError: the message has the line to type.
    """
    reward = settings.reward_model
    steps = reward.step_label is not None
    try:
        _, fields = of_trl(reward.trainer, steps=steps, output_dir="", seed=0)
        inspect.signature(fields.func).bind(**fields.keywords)
    except TypeError as error:
        raise IterateError(
            f"reward_model.trainer does not fit TRL's {'PRMConfig' if steps else 'RewardConfig'}: {error}. "
            "Remove the line"
        ) from error
    if reward.replay_from:
        read_examples(Path(reward.replay_from), Steps if steps else Pair)
    rule = _import_rule(reward)
    try:
        preflight.check_training(config)
    except (ValueError, OmegaConfBaseException) as error:
        raise IterateError(f"policy.overrides: {error}") from error
    return rule


def _import_rule(reward: RewardModelSettings) -> Rule:
    """Import the function that ``label`` or ``step_label`` names, try it once, and return it."""
    key, name = ("label", reward.label) if reward.step_label is None else ("step_label", reward.step_label)
    make = make_pairs if key == "label" else make_steps
    try:
        rule = functions.load_function(str(name))
        make([Response("", "1+1=?", "", "0", 0.0, 1)], rule, per_prompt=1, seed=0)
    except Exception as error:
        valid = "grpo_verl_ext.rewards." + ("rules.correctness" if key == "label" else "steps.compute_score")
        raise IterateError(
            f"reward_model.{key} is {name!r}, which cannot be asked for an empty response: {error}. Type: "
            f"reward_model.{key}={valid}, or a function of your own like it"
        ) from error
    return rule
