"""List the features of this package that a configuration uses, and verl's engine, trainer and rollouts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig

from grpo_verl_ext import catalogue
from grpo_verl_ext.catalogue import ESTIMATORS, TokenLoss
from grpo_verl_ext.utils.keys import ACTOR, MODE, setting
from grpo_verl_ext.verl_plugin.config import REWARD_MANAGER, Options, written
from grpo_verl_ext.verl_plugin.gvpo.plan import policy_moves
from grpo_verl_ext.verl_plugin.reward_options import RewardModelOptions
from grpo_verl_ext.verl_plugin.rewards.checks import overlong_punishment

STRATEGY = f"{ACTOR}.strategy"
CORRECTION = "algorithm.rollout_correction"
DISTILLATION = "distillation.distillation_loss"
KL_COEFFICIENT = "algorithm.kl_ctrl.kl_coef"

Check = Callable[[DictConfig], bool]


@dataclass(frozen=True)
class Feature:
    """A feature of this package that a training can use."""

    title: str
    is_used: Check


@dataclass(frozen=True)
class Context:
    """An engine, a trainer or a kind of rollout of verl that a feature meets."""

    kind: str
    title: str
    is_used: Check


def features(config: DictConfig) -> list[str]:
    """Return the names of `FEATURES` that a training uses."""
    return [name for name, feature in FEATURES.items() if feature.is_used(config)]


def contexts(config: DictConfig) -> list[str]:
    """Return the names of `CONTEXTS` that a training has."""
    return [name for name, context in CONTEXTS.items() if context.is_used(config)]


def _estimator(config: DictConfig) -> str:
    return str(setting(config, "algorithm.adv_estimator"))


def _option(config: DictConfig, name: str) -> Any:
    return written(config.algorithm).get(name)


def _by_tokens(config: DictConfig) -> bool:
    """Whether the loss is not GVPO's, and the loss, the estimator or the preset is this package's."""
    if isinstance(catalogue.loss_of(config), TokenLoss):
        return True
    ours = _estimator(config) in ESTIMATORS or _option(config, "preset") is not None
    return ours and not catalogue.has_groups(config)


def _is_anchored(config: DictConfig) -> bool:
    estimator = catalogue.estimator_of(config)
    return estimator is not None and estimator.sums_to_zero


def _anchor(config: DictConfig) -> Any:
    """Return ``gvpo_anchor`` in a training of GVPO, else None."""
    return _option(config, "gvpo_anchor") or "old" if _is_anchored(config) else None


def _takes_recorded(stored_responses: Any) -> bool:
    return isinstance(stored_responses, Mapping) and stored_responses.get("old_log_probs") == "recorded"


def _takes_history(stored_responses: Any) -> bool:
    """Whether a history is kept: with a share of 0 there is none."""
    if not isinstance(stored_responses, Mapping):
        return False
    return stored_responses.get("source") == "history" and bool(stored_responses.get("share"))


def _filters_groups(config: DictConfig) -> bool:
    return bool(setting(config, "algorithm.filter_groups.enable", False))


FEATURES: Mapping[str, Feature] = {
    "token_loss": Feature("Losses of tokens", _by_tokens),
    "gvpo_one": Feature(
        "GVPO, one update per rollout",
        lambda config: catalogue.has_groups(config) and not policy_moves(config),
    ),
    "gvpo_several": Feature(
        "GVPO, several updates", lambda config: catalogue.has_groups(config) and policy_moves(config)
    ),
    "anchor_old": Feature("`gvpo_anchor=old`", lambda config: _anchor(config) == "old"),
    "anchor_ref": Feature("`gvpo_anchor=ref`", lambda config: _anchor(config) == "ref"),
    "process": Feature("Process supervision", catalogue.learns_from_steps),
    "refresh": Feature(
        "Reference refresh", lambda config: _option(config, "ref_model_sync_steps") is not None
    ),
    "stored_responses": Feature(
        "`stored_responses`", lambda config: _option(config, "stored_responses") is not None
    ),
    "recorded": Feature(
        "`stored_responses.old_log_probs=recorded`",
        lambda config: _takes_recorded(_option(config, "stored_responses")),
    ),
    "history": Feature(
        "`stored_responses.source=history`",
        lambda config: _takes_history(_option(config, "stored_responses")),
    ),
    "dynamic_sampling": Feature(
        "Dynamic sampling", lambda config: _estimator(config) in ESTIMATORS and _filters_groups(config)
    ),
    "mask_truncated_completions": Feature(
        "`mask_truncated_completions`",
        lambda config: (
            _estimator(config) in ESTIMATORS and bool(_option(config, "mask_truncated_completions"))
        ),
    ),
    "gold_responses": Feature(
        "`gold_responses`", lambda config: _option(config, "gold_responses") is not None
    ),
    "seed_requests": Feature("`seed_requests`", lambda config: _option(config, "seed_requests") is not None),
}
"""Estimators and losses, and features that need more than their calls."""


def _is_megatron(config: DictConfig) -> bool:
    return bool(setting(config, STRATEGY) == "megatron")


def _stages(config: DictConfig) -> Any:
    return setting(config, f"{ACTOR}.megatron.pipeline_model_parallel_size", 1)


def driver(config: DictConfig) -> str:
    """Return which of verl's programs composed this; two have a section that ``main_ppo`` lacks."""
    if "async_training" in config:
        return "fully async"
    if "rollout" in config:
        return "one-step-off"
    return "v1" if setting(config, "trainer.use_v1", True) else "v0"


def _under(mode: str) -> Check:
    return lambda config: driver(config) == "v1" and setting(config, MODE) == mode


def _driven_by(name: str) -> Check:
    return lambda config: driver(config) == name


def _bypasses(config: DictConfig) -> bool:
    return bool(setting(config, f"{CORRECTION}.bypass_mode", False))


def _weighs(config: DictConfig) -> bool:
    return setting(config, f"{CORRECTION}.rollout_is") is not None


def _criteria(config: DictConfig) -> list[str]:
    """Return verl's names of the rejection criteria, given as one comma-separated text."""
    written = str(setting(config, f"{CORRECTION}.rollout_rs", ""))
    return [name.strip() for name in written.split(",") if name.strip()]


def _rejects_tokens(config: DictConfig) -> bool:
    return any(name.startswith("token") for name in _criteria(config))


def _rejects_sequences(config: DictConfig) -> bool:
    return any(not name.startswith("token") for name in _criteria(config))


def _distils(config: DictConfig) -> bool:
    return bool(setting(config, "distillation.enabled", False))


def _has_task_rewards(config: DictConfig) -> bool:
    return bool(setting(config, f"{DISTILLATION}.use_task_rewards", True))


def _distils_top_k(config: DictConfig) -> bool:
    return bool(setting(config, f"{DISTILLATION}.loss_mode") == "forward_kl_topk")


def _subtracts_kl(config: DictConfig) -> bool:
    return bool(setting(config, "algorithm.use_kl_in_reward") and setting(config, KL_COEFFICIENT))


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


ENGINES, TRAINERS, ROLLOUTS, REWARDS = "Engines", "Trainers", "Rollouts and other losses", "Rewards"
KNOWN_ENGINES = ("fsdp", "fsdp2", "megatron", "veomni", "torchtitan")

CONTEXTS: Mapping[str, Context] = {
    "sync": Context(TRAINERS, f"`{MODE}=sync`", _under("sync")),
    "colocate_async": Context(TRAINERS, f"`{MODE}=colocate_async`", _under("colocate_async")),
    "separate_async": Context(TRAINERS, f"`{MODE}=separate_async`", _under("separate_async")),
    "grpo_ext_sync": Context(TRAINERS, f"`{MODE}=grpo_ext_sync`", _under("grpo_ext_sync")),
    "grpo_ext_colocate_async": Context(
        TRAINERS, f"`{MODE}=grpo_ext_colocate_async`", _under("grpo_ext_colocate_async")
    ),
    "grpo_ext_separate_async": Context(
        TRAINERS, f"`{MODE}=grpo_ext_separate_async`", _under("grpo_ext_separate_async")
    ),
    "v0": Context(TRAINERS, "`trainer.use_v1=false`", _driven_by("v0")),
    "one_step_off": Context(TRAINERS, "`verl.experimental.one_step_off_policy`", _driven_by("one-step-off")),
    "fully_async": Context(TRAINERS, "`verl.experimental.fully_async_policy`", _driven_by("fully async")),
    "fsdp": Context(
        ENGINES, "FSDP1: `actor.strategy=fsdp`", lambda config: setting(config, STRATEGY) == "fsdp"
    ),
    "fsdp2": Context(ENGINES, "FSDP2: `fsdp2`", lambda config: setting(config, STRATEGY) == "fsdp2"),
    "megatron": Context(
        ENGINES,
        "`megatron`, one pipeline stage",
        lambda config: _is_megatron(config) and _stages(config) == 1,
    ),
    "megatron_stages": Context(
        ENGINES, "`megatron`, more", lambda config: _is_megatron(config) and _stages(config) != 1
    ),
    "veomni": Context(ENGINES, "`veomni`", lambda config: setting(config, STRATEGY) == "veomni"),
    "torchtitan": Context(ENGINES, "`torchtitan`", lambda config: setting(config, STRATEGY) == "torchtitan"),
    "other_engine": Context(
        ENGINES, "any other", lambda config: setting(config, STRATEGY) not in (None, *KNOWN_ENGINES)
    ),
    "weights": Context(
        ROLLOUTS,
        "importance weights: `rollout_is`",
        lambda config: _weighs(config) and not _bypasses(config),
    ),
    "token_rejection": Context(
        ROLLOUTS,
        "token rejection: `rollout_rs=token_…`",
        lambda config: _rejects_tokens(config) and not _bypasses(config),
    ),
    "sequence_rejection": Context(
        ROLLOUTS,
        "sequence rejection: `rollout_rs=seq_…`",
        lambda config: _rejects_sequences(config) and not _bypasses(config),
    ),
    "bypass": Context(ROLLOUTS, "`bypass_mode`", _bypasses),
    "bypassed_weights": Context(
        ROLLOUTS, "`bypass_mode` and `rollout_is`", lambda config: _bypasses(config) and _weighs(config)
    ),
    "bypassed_rejection": Context(
        ROLLOUTS,
        "`bypass_mode` and `rollout_rs`",
        lambda config: _bypasses(config) and bool(_criteria(config)),
    ),
    "distillation": Context(
        ROLLOUTS,
        "distillation beside the task's reward",
        lambda config: _distils(config) and _has_task_rewards(config) and not _distils_top_k(config),
    ),
    "distillation_top_k": Context(
        ROLLOUTS,
        "the same, `forward_kl_topk`",
        lambda config: _distils(config) and _has_task_rewards(config) and _distils_top_k(config),
    ),
    "distillation_only": Context(
        ROLLOUTS,
        "distillation only",
        lambda config: _distils(config) and not _has_task_rewards(config),
    ),
    "kl_in_reward": Context(REWARDS, "KL in the reward: `use_kl_in_reward`", _subtracts_kl),
    "overlong": Context(REWARDS, "overlong punishment: `reward_manager.name=dapo`", overlong_punishment),
    "response_models": Context(
        REWARDS, f"reward models of responses: `reward_manager.name={REWARD_MANAGER}`", _scores_responses
    ),
}
"""Trainers come first, so that their refusal is reported first."""
