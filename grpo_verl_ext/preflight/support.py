"""Refuse features of this package under engines, trainers and rollouts of verl where they are not exact.

`REFUSALS` lists them by the names of `training`. What is not listed is exact; ``docs/support.md`` names the
test that shows it. Where verl's driver does not run this check, the estimators, the worker's
`check_statistic_engine` and losses with a statistic refuse at their first call.
"""

from collections.abc import Mapping
from itertools import combinations

from omegaconf import DictConfig

from grpo_verl_ext.catalogue import ON_FSDP2, STATISTIC_ENGINES
from grpo_verl_ext.catalogue.verls import BYPASS_LOSS
from grpo_verl_ext.preflight.training import FEATURES, STRATEGY, VERLS_MODES, contexts, features
from grpo_verl_ext.utils.errors import Line, SettingError
from grpo_verl_ext.utils.keys import ACTOR, BYPASS, CORRECTION, DISTILLATION, MODE, POLICY_LOSS, setting
from grpo_verl_ext.verl_plugin.config import TRAINER_MODES
from grpo_verl_ext.verl_plugin.features import OUR_ASYNC_MODES, UNTRIED_ENGINES, Place, Refusal, all_features

_ENGINE_OF = {
    "McoreActorConfig": "megatron",
    "VeOmniActorConfig": "veomni",
    "TorchTitanActorConfig": "torchtitan",
}
"""Class of ``actor_rollout_ref.actor`` → the engine that verl makes for it, whatever ``strategy`` says."""


def check_engine(config: DictConfig) -> None:
    """Refuse an ``actor.strategy`` that does not name the engine, as all other checks take it to do.

    Raises:
        SettingError: it names another.
    """
    engine = _ENGINE_OF.get(str(setting(config, f"{ACTOR}._target_", "")).rpartition(".")[2])
    strategy = setting(config, STRATEGY)
    if engine is not None and strategy != engine and features(config):
        raise SettingError(
            STRATEGY,
            strategy,
            why=f"model_engine={engine} makes the engine {engine} whatever this key says",
            valid=engine,
            fix=Line(f"{STRATEGY}={engine}", more=f", or {' '.join(ON_FSDP2)}"),
        )


def check_support(config: DictConfig) -> None:
    """Refuse a training that uses a feature in a context where `REFUSALS` has it.

    Raises:
        SettingError: the first refusal.
    """
    used = features(config)
    met = contexts(config) if used else []
    places: list[Place] = [*met, *combinations(met, 2)]
    for place in places:
        for feature in used:
            if refusal := REFUSED.get((feature, place)):
                raise refusal.error(setting(config, refusal.key))


_GVPO = ("gvpo_one", "gvpo_several")
_STATISTIC = ("statistic_one", "statistic_several")
_NEEDS: Mapping[tuple[str, ...], str] = {
    _STATISTIC: "the loss needs a statistic of the whole mini-batch, which only a trainer mode of this "
    "package measures",
    _GVPO: "the loss gvpo is not told there which responses belong to one prompt, nor how far the policy has "
    "moved since they were written",
    ("anchor_ref",): "algorithm.grpo_ext.gvpo_anchor=ref needs the reference's log-probs in the targets, "
    "where only a trainer mode of this package puts them",
    **{tuple(each.uses): each.without_our_mode for each in all_features() if each.without_our_mode},
}
"""Features that need a trainer mode of this package → why they are refused without one."""
_NEEDS_V1 = {tuple(each.uses): each.without_v1 for each in all_features() if each.without_v1}
"""Features that need one of verl's v1 trainers → why they are refused elsewhere."""
_NO_SAMPLING = (
    "only verl's v1 trainers read algorithm.filter_groups; elsewhere every prompt would be trained on"
)
_MAIN_PPO = "verl.trainer.main_ppo with trainer.use_v1=true"


def _verls_mode(mode: str) -> list[Refusal]:
    fix = Line(f"{MODE}=grpo_ext_{mode}")
    return [Refusal(names, (mode,), MODE, reason, TRAINER_MODES, fix) for names, reason in _NEEDS.items()]


def _other_driver(place: str, key: str, seen: str, fix: str) -> list[Refusal]:
    needs = {**_NEEDS, **_NEEDS_V1, ("dynamic_sampling",): _NO_SAMPLING}.items()
    return [Refusal(names, (place,), key, reason, _MAIN_PPO, fix, seen) for names, reason in needs]


def _bypassed(place: str, key: str, what: str) -> Refusal:
    return Refusal(
        ("token_loss", *_STATISTIC, *_GVPO),
        (place,),
        key,
        f"with {BYPASS}=true {what} by verl's loss {BYPASS_LOSS} alone, as its "
        f"{POLICY_LOSS}.rollout_correction says",
        "null",
        Line(f"{key}=null", more=f", or {BYPASS}=false"),
    )


_SEPARATE = f"python3 -m verl.trainer.main_ppo … {MODE}=grpo_ext_separate_async"
_MEASUREMENTS = (name for each in all_features() if each.is_measurement for name in each.uses)
_NO_ALGORITHM = ("dynamic_sampling", *_MEASUREMENTS)

REFUSALS: tuple[Refusal, ...] = (
    *(each for mode in VERLS_MODES for each in _verls_mode(mode)),
    *_other_driver("v0", "trainer.use_v1", "", Line("trainer.use_v1=true", f"{MODE}=grpo_ext_sync")),
    *_other_driver(
        "one_step_off", "rollout", "the driver is verl.experimental.one_step_off_policy", _SEPARATE
    ),
    *_other_driver(
        "fully_async", "async_training", "the driver is verl.experimental.fully_async_policy", _SEPARATE
    ),
    Refusal(
        ("gvpo_several", "statistic_several"),
        UNTRIED_ENGINES,
        STRATEGY,
        "what the loss needs of other responses is not measured there between the updates on one rollout",
        (*STATISTIC_ENGINES, "or one update per rollout without algorithm.rollout_correction.bypass_mode"),
        Line(
            *ON_FSDP2,
            more=f", or {ACTOR}.ppo_epochs=1 '{ACTOR}.ppo_mini_batch_size=${{data.train_batch_size}}'",
        ),
    ),
    Refusal(
        (*_GVPO, "anchor_ref", "anchor_teacher"),
        ("token_rejection",),
        f"{CORRECTION}.rollout_rs",
        "GVPO compares the log-ratios of whole responses, which rejected tokens would change",
        "criteria of sequences, or null",
        Line(f"{CORRECTION}.rollout_rs=null"),
    ),
    Refusal(
        ("mask_truncated_completions",),
        ("token_rejection",),
        f"{CORRECTION}.rollout_rs",
        "algorithm.grpo_ext.mask_truncated_completions knows a truncated response by its last token, which "
        "may be rejected",
        "criteria of sequences, or null",
        Line(
            f"{CORRECTION}.rollout_rs=null", more=", or algorithm.grpo_ext.mask_truncated_completions=false"
        ),
    ),
    _bypassed("bypassed_weights", f"{CORRECTION}.rollout_is", "importance weights are applied"),
    _bypassed("bypassed_rejection", f"{CORRECTION}.rollout_rs", "rejection is done"),
    Refusal(
        (*_GVPO, *_STATISTIC),
        ("distillation_top_k",),
        f"{DISTILLATION}.loss_mode",
        "verl then calls the loss for the logits, too, where nothing is known of other responses",
        "an estimator of one token, k1 or k3",
        Line(f"{DISTILLATION}.loss_mode=k3"),
    ),
    Refusal(
        tuple(name for name in FEATURES if name not in (*_NO_ALGORITHM, "anchor_teacher")),
        ("distillation_only",),
        f"{DISTILLATION}.use_task_rewards",
        "the distillation is then the whole loss; the algorithm does nothing",
        "true",
        Line(f"{DISTILLATION}.use_task_rewards=true"),
    ),
    Refusal(
        ("anchor_old",),
        tuple((mode, "bypass") for mode in OUR_ASYNC_MODES),
        BYPASS,
        f"with {MODE}=grpo_ext_colocate_async or grpo_ext_separate_async the responses of a prompt, and the "
        "tokens of one response, may be sampled from different policies; their recorded log-probs are then "
        "no common anchor",
        "false",
        Line(f"{BYPASS}=false"),
    ),
    *(refusal for each in all_features() for refusal in each.refusals),
)

REFUSED: Mapping[tuple[str, Place], Refusal] = {
    (feature, place): refusal
    for refusal in REFUSALS
    for feature in refusal.features
    for place in refusal.places
}
"""Feature and place → its refusal."""
