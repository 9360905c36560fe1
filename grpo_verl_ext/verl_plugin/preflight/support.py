"""Refuse features of this package under engines, trainers and rollouts of verl where they are not exact.

`REFUSALS` lists them by the names of `training`. What is not listed is exact; ``docs/support.md`` names the
test that shows it. Where verl's driver does not run this check, `check_our_trainer`, `check_drift_engine` and
the loss gvpo refuse at their first call.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

from omegaconf import DictConfig

from grpo_verl_ext.utils.errors import SettingError
from grpo_verl_ext.utils.keys import ACTOR, MODE, setting
from grpo_verl_ext.verl_plugin.config import (
    DRIFT_ENGINES,
    GOLD_RESPONSES,
    REFRESH_ENGINES,
    SEED_REQUESTS,
    TRAINER_MODES,
)
from grpo_verl_ext.verl_plugin.preflight.training import (
    CORRECTION,
    DISTILLATION,
    FEATURES,
    STRATEGY,
    contexts,
    features,
)

_Place = str | tuple[str, str]
"""A context, or two that only together change a feature, in the order of `training.CONTEXTS`."""


@dataclass(frozen=True)
class Refusal:
    """Features that would do something else under some contexts, or could not be tested there."""

    features: tuple[str, ...]
    places: tuple[_Place, ...]
    key: str
    reason: str
    valid: str | tuple[str, ...]
    fix: str
    seen: str = ""
    """Replaces "key is value" in the message where one value does not say it."""

    def error(self, value: object) -> SettingError:
        """Return the error for this value of the key."""
        return SettingError(self.key, value, why=self.reason, valid=self.valid, fix=self.fix, seen=self.seen)


def check_support(config: DictConfig) -> None:
    """Refuse a training that uses a feature in a context where `REFUSALS` has it.

    Raises:
        SettingError: the first refusal.
    """
    used = features(config)
    met = contexts(config) if used else []
    places: list[_Place] = [*met, *combinations(met, 2)]
    for place in places:
        for feature in used:
            if refusal := REFUSED.get((feature, place)):
                raise refusal.error(setting(config, refusal.key))


_GVPO = ("gvpo_one", "gvpo_several")
_NEEDS: Mapping[tuple[str, ...], str] = {
    _GVPO: "the loss gvpo is not told there which responses belong to one prompt, nor how far the policy has "
    "moved since they were written",
    ("anchor_ref",): "algorithm.grpo_ext.gvpo_anchor=ref needs the reference's log-probs in the targets, "
    "where only a trainer mode of this package puts them",
    ("process",): "algorithm.adv_estimator=grpo_process is not shown the steps there",
    ("refresh",): "the reference that algorithm.grpo_ext.ref_model_sync_steps asks for is never refreshed "
    "there",
    ("gold_responses",): f"the responses of {GOLD_RESPONSES} are not measured there",
    ("stored_responses", "recorded", "history"): "nothing takes the responses of "
    "algorithm.grpo_ext.stored_responses there",
}
"""Features that need a trainer mode of this package → why they are refused without one."""
_NO_NUMBERS = (
    f"{SEED_REQUESTS} needs a number for each response to a prompt, which that trainer does not give"
)
_NO_SAMPLING = (
    "only verl's v1 trainers read algorithm.filter_groups; elsewhere every prompt would be trained on"
)
_MAIN_PPO = "verl.trainer.main_ppo with trainer.use_v1=true"


def _verls_mode(mode: str) -> list[Refusal]:
    fix = f"{MODE}=grpo_ext_{mode}"
    return [Refusal(names, (mode,), MODE, reason, TRAINER_MODES, fix) for names, reason in _NEEDS.items()]


def _other_driver(place: str, key: str, seen: str, fix: str) -> list[Refusal]:
    needs = {**_NEEDS, ("seed_requests",): _NO_NUMBERS}.items()
    no_sampling, off = ("dynamic_sampling",), "algorithm.filter_groups.enable=false"
    return [
        *(Refusal(names, (place,), key, reason, _MAIN_PPO, fix, seen) for names, reason in needs),
        Refusal(no_sampling, (place,), key, _NO_SAMPLING, _MAIN_PPO, off, seen),
    ]


def _bypassed(place: str, key: str, what: str) -> Refusal:
    return Refusal(
        ("token_loss", *_GVPO),
        (place,),
        key,
        f"with {CORRECTION}.bypass_mode=true {what} by verl's loss bypass_mode alone, not by yours",
        "null",
        f"{key}=null, or {CORRECTION}.bypass_mode=false",
    )


_OURS_ASYNC = ("grpo_ext_colocate_async", "grpo_ext_separate_async")
_SEPARATE = f"python3 -m verl.trainer.main_ppo … {MODE}=grpo_ext_separate_async"
_UNTRIED_ENGINES = ("megatron", "megatron_stages", "veomni", "torchtitan", "other_engine")
"""Contexts of engines that are neither in `DRIFT_ENGINES` nor in `REFRESH_ENGINES`."""
_NO_ALGORITHM = ("dynamic_sampling", "gold_responses", "seed_requests")
_STEPS_ALONE = "algorithm.adv_estimator=grpo_process learns from step rewards alone, and "

REFUSALS: tuple[Refusal, ...] = (
    *_verls_mode("sync"),
    *_verls_mode("colocate_async"),
    *_verls_mode("separate_async"),
    *_other_driver("v0", "trainer.use_v1", "", f"trainer.use_v1=true {MODE}=grpo_ext_sync"),
    *_other_driver(
        "one_step_off", "rollout", "the driver is verl.experimental.one_step_off_policy", _SEPARATE
    ),
    *_other_driver(
        "fully_async", "async_training", "the driver is verl.experimental.fully_async_policy", _SEPARATE
    ),
    Refusal(
        ("seed_requests",),
        ("colocate_async", "separate_async", *_OURS_ASYNC),
        MODE,
        f"with {SEED_REQUESTS} an interrupted response would draw the same random numbers again",
        ("sync", "grpo_ext_sync"),
        f"{MODE}=grpo_ext_sync",
    ),
    Refusal(
        ("history",),
        _OURS_ASYNC,
        MODE,
        "algorithm.grpo_ext.stored_responses.source is history, and there a response is trained on in a "
        "later step than the one that sampled it: its age would be too small, and its log-probs those of "
        "another policy",
        "grpo_ext_sync",
        f"{MODE}=grpo_ext_sync",
    ),
    Refusal(
        ("gvpo_several",),
        _UNTRIED_ENGINES,
        STRATEGY,
        "GVPO's drift between the updates on one rollout is not measured there",
        (*DRIFT_ENGINES, "or one update per rollout without algorithm.rollout_correction.bypass_mode"),
        f"{STRATEGY}=fsdp2, or {ACTOR}.ppo_epochs=1 '{ACTOR}.ppo_mini_batch_size=${{data.train_batch_size}}'",
    ),
    Refusal(
        ("refresh",),
        _UNTRIED_ENGINES,
        STRATEGY,
        "the reference that algorithm.grpo_ext.ref_model_sync_steps asks for cannot follow the policy there",
        REFRESH_ENGINES,
        f"{STRATEGY}=fsdp2, or ~algorithm.grpo_ext.ref_model_sync_steps",
    ),
    Refusal(
        (*_GVPO, "anchor_ref"),
        ("token_rejection",),
        f"{CORRECTION}.rollout_rs",
        "GVPO compares the log-ratios of whole responses, which rejected tokens would change",
        "criteria of sequences, or null",
        f"{CORRECTION}.rollout_rs=null",
    ),
    Refusal(
        ("mask_truncated_completions",),
        ("token_rejection",),
        f"{CORRECTION}.rollout_rs",
        "algorithm.grpo_ext.mask_truncated_completions knows a truncated response by its last token, which "
        "may be rejected",
        "criteria of sequences, or null",
        f"{CORRECTION}.rollout_rs=null, or algorithm.grpo_ext.mask_truncated_completions=false",
    ),
    _bypassed("bypassed_weights", f"{CORRECTION}.rollout_is", "importance weights are applied"),
    _bypassed("bypassed_rejection", f"{CORRECTION}.rollout_rs", "rejection is done"),
    Refusal(
        _GVPO,
        ("distillation_top_k",),
        f"{DISTILLATION}.loss_mode",
        "verl then calls the loss for the logits, too, where GVPO has no groups",
        "an estimator of one token, k1 or k3",
        f"{DISTILLATION}.loss_mode=k3",
    ),
    Refusal(
        tuple(name for name in FEATURES if name not in _NO_ALGORITHM),
        ("distillation_only",),
        f"{DISTILLATION}.use_task_rewards",
        "the distillation is then the whole loss; the algorithm does nothing",
        "true",
        f"{DISTILLATION}.use_task_rewards=true",
    ),
    Refusal(
        ("process",),
        ("kl_in_reward",),
        "algorithm.use_kl_in_reward",
        f"{_STEPS_ALONE}this KL is subtracted from the reward of whole responses; the paper has it in the "
        "loss (arXiv 2402.03300, §4.1.1)",
        "false",
        f"algorithm.use_kl_in_reward=false {ACTOR}.use_kl_loss=true",
    ),
    Refusal(
        ("recorded",),
        ("kl_in_reward",),
        "algorithm.use_kl_in_reward",
        "algorithm.grpo_ext.stored_responses.old_log_probs is recorded, and verl then takes the KL of the "
        "policy that wrote a response",
        "false",
        f"algorithm.use_kl_in_reward=false {ACTOR}.use_kl_loss=true, or "
        "algorithm.grpo_ext.stored_responses.old_log_probs=actor",
    ),
    Refusal(
        ("process",),
        ("overlong",),
        "reward.reward_kwargs.overlong_buffer_cfg.enable",
        f"{_STEPS_ALONE}verl's punishment of long responses is added to the reward of whole responses",
        "false, and steps of yours that punish",
        "reward.reward_kwargs.overlong_buffer_cfg.enable=false",
    ),
    Refusal(
        ("process",),
        ("response_models",),
        "reward.reward_manager.name",
        f"{_STEPS_ALONE}the models of algorithm.grpo_ext.reward_model and …reward_models, or of verl's "
        "server, score whole responses",
        "a weight of 0 for each of them, which only reports its score",
        "reward.reward_manager.name=naive, or ++algorithm.grpo_ext.reward_model.weight=0",
    ),
    Refusal(
        ("anchor_old",),
        tuple((mode, "bypass") for mode in _OURS_ASYNC),
        f"{CORRECTION}.bypass_mode",
        f"with {MODE}=grpo_ext_colocate_async or grpo_ext_separate_async the responses of a prompt, and the "
        "tokens of one response, may be sampled from different policies; their recorded log-probs are then "
        "no common anchor",
        "false",
        f"{CORRECTION}.bypass_mode=false",
    ),
)

REFUSED: Mapping[tuple[str, _Place], Refusal] = {
    (feature, place): refusal
    for refusal in REFUSALS
    for feature in refusal.features
    for place in refusal.places
}
"""Feature and place → its refusal."""
