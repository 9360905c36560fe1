"""Check that something reads the options of this package, and the clips of verl's, that a training sets."""

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from omegaconf import DictConfig
from verl.workers.config import ActorConfig, PolicyLossConfig

from grpo_verl_ext import catalogue
from grpo_verl_ext.catalogue import ALGORITHMS, ESTIMATORS, LOSSES, GroupLoss, VerlsLoss
from grpo_verl_ext.catalogue.record import CLIPS
from grpo_verl_ext.preflight.names import replaced
from grpo_verl_ext.utils.documents import leaves
from grpo_verl_ext.utils.errors import Line, Problem, SettingError, as_typed
from grpo_verl_ext.utils.keys import ACTOR, ESTIMATOR, LOSS, POLICY_LOSS, SECTION, setting
from grpo_verl_ext.utils.options import is_count
from grpo_verl_ext.verl_plugin.config import TRAINER_MODES, written
from grpo_verl_ext.verl_plugin.usage import PREFIX

_ANCHOR = f"{SECTION}.gvpo_anchor"
_BOTH_SIDES, _SIDES = "clip_ratio", ("clip_ratio_low", "clip_ratio_high")
_PF_PPO = "algorithm.use_pf_ppo"
_WARMUP = "trainer.critic_warmup"
_REWARDS = ("algorithm.gdpo_reward_keys", "algorithm.gdpo_reward_weights")


def check_unread_options(config: DictConfig) -> None:
    """Refuse options of another algorithm than the configured one.

    Where the loss or the estimator replaces the named preset's, the options are the preset's, which
    `advise_preset` reports. Options that this verl has for its own losses may have any value with those.

    Raises:
        SettingError: the first option that has another value than its default, and that nothing reads.
    """
    _check_sections_of_modes(config)
    by_command = replaced(config)
    if LOSS not in by_command:
        _check_options_of_losses(config)
        _check_anchor(config)
    if ESTIMATOR not in by_command:
        _check_rewards(config)


def _check_sections_of_modes(config: DictConfig) -> None:
    for mode in TRAINER_MODES:
        key, verls = f"trainer.v1.{mode}", f"trainer.v1.{mode.removeprefix(PREFIX)}"
        if section := setting(config, key):
            values = leaves({verls: section})
            raise SettingError(
                key,
                section,
                why="verl reads the section of its own mode",
                valid=verls,
                fix=Line(
                    *(f"{name}={as_typed(value)}" for name, value in values),
                    without=(key,),
                    more=f", without {key}",
                ),
            )


def _check_options_of_losses(config: DictConfig) -> None:
    loss, name = catalogue.loss_of(config), setting(config, LOSS)
    read = {*loss.options.model_fields} if loss is not None and loss.options else set()
    if loss is None or isinstance(loss, VerlsLoss):
        read |= {each.name for each in fields(PolicyLossConfig)}
    policy_loss = config.actor_rollout_ref.actor.policy_loss
    for other in LOSSES.values():
        for option, its in (other.options.model_fields if other.options else {}).items():
            value = policy_loss.get(option, its.default)
            if option not in read and value != its.default:
                raise _of_another(f"{POLICY_LOSS}.{option}", value, its.default, f"{LOSS}={name}", other.name)


def _check_anchor(config: DictConfig) -> None:
    """GVPO's estimator without its loss, or the loss without it, has an error of its own."""
    anchor, name = written(config.algorithm).get("gvpo_anchor"), setting(config, LOSS)
    of_groups = [each for each in ALGORITHMS.values() if isinstance(each.loss, GroupLoss)]
    losses = [each.loss.name for each in of_groups]
    if anchor in (None, "old") or name in losses:
        return
    if setting(config, ESTIMATOR) not in [each.estimator.name for each in of_groups]:
        raise _of_another(_ANCHOR, anchor, "old", f"{LOSS}={name}", ", ".join(losses))


def _check_rewards(config: DictConfig) -> None:
    estimator = catalogue.estimator_of(config)
    if estimator is None or estimator.several_rewards:
        return
    for key in _REWARDS:
        if value := setting(config, key):
            readers = (each.name for each in ESTIMATORS.values() if each.several_rewards)
            raise _of_another(key, value, None, f"{ESTIMATOR}={estimator.name}", ", ".join(readers))


def _of_another(key: str, value: Any, default: Any, configured: str, readers: str) -> SettingError:
    why = f"{configured} does not read it, which is an option of {readers}"
    return SettingError.of(_unread(key, value, default, why))


def _unread(key: str, value: Any, default: Any, why: str) -> Problem:
    typed = as_typed(default)
    return Problem(key, value, why=why, valid=f"{typed}, its default", fix=Line(f"{key}={typed}"))


def advise_unread_options(config: DictConfig) -> Iterator[Problem]:
    """Warn of options of our estimators when another package's estimator is configured.

    Where it replaces the named preset's, the options are the preset's, which `advise_preset` reports. With
    an estimator of ours, warn of verl's PF-PPO and of the critic's warm-up, for there is no critic.
    """
    estimator = config.algorithm.adv_estimator
    options = written(config.algorithm)
    if estimator in ESTIMATORS and setting(config, _PF_PPO):
        yield _unread(_PF_PPO, True, False, f"{ESTIMATOR}={estimator} does not read it")
    warmup = setting(config, _WARMUP)
    if estimator in ESTIMATORS and is_count(warmup) and warmup > 1 and not setting(config, "critic.enable"):
        why = f"verl does not train the policy before this step, and {ESTIMATOR}={estimator} has no critic"
        yield _unread(_WARMUP, warmup, 0, why)
    if estimator in ESTIMATORS or "algorithm.adv_estimator" in replaced(config):
        return
    for name in ("mask_truncated_completions", "scale_rewards"):
        if options.get(name):
            key = f"{SECTION}.{name}"
            yield Problem(
                key,
                options[name],
                why=f"algorithm.adv_estimator={estimator} is not of this package and does not read it",
                valid=tuple(ESTIMATORS),
                fix=Line(f"~{key}", more=", or algorithm.adv_estimator=<one of them>"),
            )


def advise_unread_clip(config: DictConfig) -> Iterator[Problem]:
    """Warn of a clip that the configured loss does not read, such as one of a script for another loss.

    Where the loss replaces the named preset's, the clip is the preset's, which `advise_preset` reports.
    """
    loss, name = catalogue.loss_of(config), setting(config, LOSS)
    if loss is None or LOSS in replaced(config):
        return
    actor = config.actor_rollout_ref.actor
    defaults = {each.name: each.default for each in fields(ActorConfig)}
    for key in CLIPS:
        value, default = actor.get(key), defaults[key]
        if value in (None, default):
            continue
        if key in loss.unread:
            yield _unread(f"{ACTOR}.{key}", value, default, f"{LOSS}={name} does not read it")
        elif key == _BOTH_SIDES and all(actor.get(side, default) == default for side in _SIDES):
            yield Problem(
                f"{ACTOR}.{key}",
                value,
                why=f"{' and '.join(_SIDES)}, which are {default}, are read in its place",
                valid=f"{default}, or both of them set",
                fix=Line(*(f"{ACTOR}.{side}={value}" for side in _SIDES)),
            )
