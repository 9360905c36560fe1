"""Check the settings before the first round, so that no round fails on a mistake that was visible before."""

from __future__ import annotations

import inspect
from pathlib import Path

from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from grpo_verl_ext import catalogue, preflight
from grpo_verl_ext.catalogue.requires import AtLeast, In
from grpo_verl_ext.iterate.examples import Pair, Rule, Steps
from grpo_verl_ext.iterate.reward_training import of_trl
from grpo_verl_ext.iterate.settings import IterateError, IterateSettings, Round
from grpo_verl_ext.rewards import functions
from grpo_verl_ext.runs.metrics import Response
from grpo_verl_ext.utils.errors import SettingError
from grpo_verl_ext.utils.keys import ACTOR, REWARD_MANAGER, setting
from grpo_verl_ext.verl_plugin.compose import composed

_SAVED = (
    *(
        In(f"actor_rollout_ref.model.{key}", (off, None), "verl does not save in a Hugging Face folder")
        for key, off in (("lora_rank", 0), ("lora.rank", 0), ("lora_adapter_path", None))
    ),
    In(f"{ACTOR}.strategy", ("fsdp2", "fsdp"), "saves no such folder of the policy"),
    AtLeast("trainer.save_freq", 1, "saves no policy for the next round"),
)
_MANAGER = In(
    "reward.reward_manager.name",
    ("naive", REWARD_MANAGER),
    f"is replaced by {REWARD_MANAGER} in rounds with a reward model, unless reward_model.weight=0",
)


def compose_rounds(settings: IterateSettings) -> DictConfig:
    """Compose verl's configuration of every round, and return that of the first.

    Refuses what verl would refuse, and a policy that no later round could begin with or learn from.
    """
    numbers = range(1, settings.rounds + 1)
    try:
        rounds = [composed(Round(settings, number).run().arguments()) for number in numbers]
        own = composed([*settings.policy.overrides])
    except SettingError as error:
        raise IterateError(f"policy.overrides: verl refuses them: {error}") from error
    asks_model = any(setting(config, _MANAGER.key) == REWARD_MANAGER for config in rounds)
    for row, config in [*((row, rounds[0]) for row in _SAVED), *[(_MANAGER, own)] * asks_model]:
        if found := row.unmet("iterate", config):
            raise IterateError(f"policy.overrides: {found.problem}")
    if "hf_model" not in (saved := rounds[0].actor_rollout_ref.actor.checkpoint.save_contents):
        why = f"policy.overrides: {ACTOR}.checkpoint.save_contents is {saved}, without a policy for the next"
        raise IterateError(f"{why} round. Add hf_model to it")
    of_steps = settings.reward_model.step_label is not None
    if asks_model and catalogue.learns_from_steps(own) != of_steps:
        raise IterateError(
            f"policy.overrides: algorithm.adv_estimator is {own.algorithm.adv_estimator}, which learns "
            f"nothing from the model of reward_model.{'step_label' if of_steps else 'label'}. Type: "
            f"+algo={'grpo_process' if of_steps else 'grpo'}"
        )
    return rounds[0]


def checked_rule(settings: IterateSettings, config: DictConfig) -> Rule:
    """Import the rule, try it once, and return it; refuse what TRL or verl's driver would refuse later.

    ``config`` is verl's of the first round, whose models and data exist.
    """
    reward = settings.reward_model
    steps = reward.step_label is not None
    kind: type[Pair | Steps] = Steps if steps else Pair
    try:
        _, fields = of_trl(reward.trainer, steps=steps, output_dir="", seed=0)
        inspect.signature(fields.func).bind(**fields.keywords)
    except TypeError as error:
        raise IterateError(
            f"reward_model.trainer does not fit TRL's {'PRMConfig' if steps else 'RewardConfig'}: {error}. "
            "Remove the line"
        ) from error
    if reward.replay_from:
        kind.read(Path(reward.replay_from))
    name = str(reward.step_label or reward.label)
    try:
        rule = functions.load_function(name)
        kind.made([Response("", "1+1=?", "", "0", 0.0, 1)], rule, per_prompt=1, seed=0)
    except Exception as error:
        key, valid = ("step_label", "steps.compute_score") if steps else ("label", "rules.correctness")
        raise IterateError(
            f"reward_model.{key} is {name!r}, which cannot be asked for an empty response: {error}. Type: "
            f"reward_model.{key}=grpo_verl_ext.rewards.{valid}, or a function of your own like it"
        ) from error
    try:
        preflight.check_training(config)
    except (ValueError, OmegaConfBaseException) as error:
        raise IterateError(f"policy.overrides: {error}") from error
    return rule
