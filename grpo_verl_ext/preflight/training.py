"""List the features of this package that a configuration uses, and verl's engine, trainer and rollouts."""

from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig

from grpo_verl_ext import catalogue
from grpo_verl_ext.catalogue import ESTIMATORS, TokenLoss
from grpo_verl_ext.catalogue.verls import BYPASS_LOSS, overlong_punishment
from grpo_verl_ext.catalogue.weights import criteria_of_rejection
from grpo_verl_ext.utils.keys import (
    ACTOR,
    BYPASS,
    CORRECTION,
    DISTILLATION,
    ESTIMATOR,
    FULLY_ASYNC,
    LOSS,
    MODE,
    ONE_STEP_OFF,
    POLICY_LOSS,
    setting,
)
from grpo_verl_ext.verl_plugin.config import (
    REWARD_MANAGER,
    TRAINER_MODES,
    Options,
    RewardModelOptions,
    written,
)
from grpo_verl_ext.verl_plugin.features import Uses, all_features
from grpo_verl_ext.verl_plugin.mini_batch.plan import policy_moves
from grpo_verl_ext.verl_plugin.teacher.checks import has_teacher

STRATEGY = f"{ACTOR}.strategy"
_KL_COEFFICIENT = "algorithm.kl_ctrl.kl_coef"


def features(config: DictConfig) -> list[str]:
    """Return the names of `FEATURES` that a training uses."""
    return [name for name, is_used in FEATURES.items() if is_used(config)]


def contexts(config: DictConfig) -> list[str]:
    """Return the names of `CONTEXTS` that a training has."""
    return [name for name, is_met in CONTEXTS.items() if is_met(config)]


def driver(config: DictConfig) -> str:
    """Return which of verl's programs composed this; two have a section that ``main_ppo`` lacks."""
    if FULLY_ASYNC in config:
        return "fully async"
    if ONE_STEP_OFF in config:
        return "one-step-off"
    return "v1" if setting(config, "trainer.use_v1", True) else "v0"


def _all(*checks: Uses) -> Uses:
    return lambda config: all(check(config) for check in checks)


def _not(check: Uses) -> Uses:
    return lambda config: not check(config)


def _is(key: str, *values: object) -> Uses:
    return lambda config: setting(config, key) in values


def _is_on(key: str, default: bool = False) -> Uses:
    return lambda config: bool(setting(config, key, default))


def _option(config: DictConfig, name: str) -> Any:
    return written(config.algorithm).get(name)


def _has_gvpo_targets(config: DictConfig) -> bool:
    estimator = catalogue.estimator_of(config)
    return estimator is not None and estimator.sums_to_zero


def _is_ours(config: DictConfig) -> bool:
    return setting(config, ESTIMATOR) in ESTIMATORS


def _by_tokens(config: DictConfig) -> bool:
    """Whether the loss is not GVPO's, and the loss, the estimator or the preset is this package's."""
    return catalogue.knows(config) and not catalogue.has_groups(config)


def _has_statistic(config: DictConfig) -> bool:
    """Whether a loss of tokens needs a statistic of the mini-batch."""
    loss = catalogue.loss_of(config)
    return isinstance(loss, TokenLoss) and loss.needs is not None


def _anchors(name: str) -> Uses:
    """Return whether a training of GVPO has this ``gvpo_anchor``."""
    return lambda config: _has_gvpo_targets(config) and (_option(config, "gvpo_anchor") or "old") == name


def _masks_truncated(config: DictConfig) -> bool:
    return bool(_option(config, "mask_truncated_completions"))


FEATURES: Mapping[str, Uses] = {
    "token_loss": _by_tokens,
    "statistic_one": _all(_has_statistic, _not(policy_moves)),
    "statistic_several": _all(_has_statistic, policy_moves),
    "gvpo_one": _all(catalogue.has_groups, _not(policy_moves)),
    "gvpo_several": _all(catalogue.has_groups, policy_moves),
    "anchor_old": _anchors("old"),
    "anchor_ref": _anchors("ref"),
    "dynamic_sampling": _all(_is_ours, _is_on("algorithm.filter_groups.enable")),
    "mask_truncated_completions": _all(_is_ours, _masks_truncated),
    **{name: is_used for feature in all_features() for name, is_used in feature.uses.items()},
}
"""Estimators and losses, and features that need more than their calls → whether a training uses them."""


def _driven_by(name: str) -> Uses:
    return lambda config: driver(config) == name


def _has_one_stage(config: DictConfig) -> bool:
    return bool(setting(config, f"{ACTOR}.megatron.pipeline_model_parallel_size", 1) == 1)


def _rejects(*what: str) -> Uses:
    """Return whether verl's criteria reject tokens or sequences."""

    def check(config: DictConfig) -> bool:
        names = criteria_of_rejection(config)
        return any(("tokens" if name.startswith("token") else "sequences") in what for name in names)

    return check


def _applied_by_loss(name: str) -> Uses:
    """Return whether verl's loss for bypass mode applies what ``rollout_correction`` asks for."""

    def check(config: DictConfig) -> bool:
        of_loss = setting(config, f"{POLICY_LOSS}.rollout_correction.{name}")
        return setting(config, LOSS) == BYPASS_LOSS and bool(
            of_loss == setting(config, f"{CORRECTION}.{name}")
        )

    return check


def _scores_responses(config: DictConfig) -> bool:
    """Whether a reward model of whole responses has a part in the reward."""
    if setting(config, "reward.reward_manager.name") != REWARD_MANAGER:
        return False
    options = Options.from_config(config.algorithm)
    first = options.reward_model or RewardModelOptions()
    is_there = first.path is not None or bool(setting(config, "reward.reward_model.enable"))
    return bool(is_there and first.weight) or any(
        model.weight for model in (options.reward_models or {}).values()
    )


_KNOWN_ENGINES = ("fsdp", "fsdp2", "megatron", "veomni", "torchtitan")
VERLS_MODES = ("sync", "colocate_async", "separate_async")
KNOWN_TRAINER_MODES = (*VERLS_MODES, *TRAINER_MODES)
_MEGATRON = _is(STRATEGY, "megatron")
_BYPASS = _is_on(BYPASS)
_WEIGHTS = _not(_is(f"{CORRECTION}.rollout_is", None))
_DISTILS = _is_on("distillation.enabled")
_TASK_REWARDS = _is_on(f"{DISTILLATION}.use_task_rewards", True)
_DISTILS_ONLY = _all(_DISTILS, _not(_TASK_REWARDS), _not(has_teacher))
_TOP_K = _is(f"{DISTILLATION}.loss_mode", "forward_kl_topk")

CONTEXTS: Mapping[str, Uses] = {
    **{mode: _all(_driven_by("v1"), _is(MODE, mode)) for mode in KNOWN_TRAINER_MODES},
    "v0": _driven_by("v0"),
    "one_step_off": _driven_by("one-step-off"),
    "fully_async": _driven_by("fully async"),
    "fsdp": _is(STRATEGY, "fsdp"),
    "fsdp2": _is(STRATEGY, "fsdp2"),
    "megatron": _all(_MEGATRON, _has_one_stage),
    "megatron_stages": _all(_MEGATRON, _not(_has_one_stage)),
    "veomni": _is(STRATEGY, "veomni"),
    "torchtitan": _is(STRATEGY, "torchtitan"),
    "other_engine": _not(_is(STRATEGY, None, *_KNOWN_ENGINES)),
    "weights": _all(_WEIGHTS, _not(_BYPASS)),
    "token_rejection": _all(_rejects("tokens"), _not(_BYPASS)),
    "sequence_rejection": _all(_rejects("sequences"), _not(_BYPASS)),
    "bypass": _BYPASS,
    "bypassed_weights": _all(_BYPASS, _WEIGHTS, _not(_applied_by_loss("rollout_is"))),
    "bypassed_rejection": _all(
        _BYPASS, _rejects("tokens", "sequences"), _not(_applied_by_loss("rollout_rs"))
    ),
    "distillation": _all(_DISTILS, _not(_DISTILS_ONLY), _not(_TOP_K)),
    "distillation_top_k": _all(_DISTILS, _not(_DISTILS_ONLY), _TOP_K),
    "distillation_only": _DISTILS_ONLY,
    "kl_in_reward": _all(_is_on("algorithm.use_kl_in_reward"), _is_on(_KL_COEFFICIENT)),
    "overlong": overlong_punishment,
    "response_models": _scores_responses,
}
"""Engines, trainers and kinds of rollout of verl that a feature meets → whether a training has them.

Trainers come first, so that their refusal is reported first.
"""
