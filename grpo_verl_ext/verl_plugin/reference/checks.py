"""The record of the feature ``ref_model_sync_steps``, and the check of its settings before any rollout."""

from collections.abc import Callable, Mapping
from typing import Any

from omegaconf import DictConfig

from grpo_verl_ext.catalogue import ON_FSDP2
from grpo_verl_ext.utils.errors import Line, SettingError
from grpo_verl_ext.utils.keys import ACTOR, MODE, SECTION, setting
from grpo_verl_ext.verl_plugin.config import REFRESH_ENGINES, Options
from grpo_verl_ext.verl_plugin.features import UNTRIED_ENGINES, Feature, Refusal, has_option

_KEY = f"{SECTION}.ref_model_sync_steps"


def check_reference(config: DictConfig) -> None:
    """Refuse to refresh a reference that is absent, in other workers or sharded unlike the policy.

    Raises:
        SettingError: the first wrong setting.
    """
    options = Options.from_config(config.algorithm)
    steps = options.ref_model_sync_steps
    if steps is None:
        _check_unread(options.ref_model_mixup_alpha)
        return
    if not (config.actor_rollout_ref.actor.use_kl_loss or config.algorithm.use_kl_in_reward):
        raise SettingError(
            _KEY,
            steps,
            why="there is no reference to refresh: neither actor_rollout_ref.actor.use_kl_loss nor "
            "algorithm.use_kl_in_reward is true",
            valid="null",
            fix=Line("actor_rollout_ref.actor.use_kl_loss=true", more=f", or ~{_KEY}"),
        )
    if has_adapter(config):
        raise SettingError(
            _KEY,
            steps,
            why="with LoRA the reference is the policy without its adapter, which nothing can refresh",
            valid="null",
            fix=Line(f"~{_KEY}"),
        )
    separate = setting(config, MODE) == "grpo_ext_separate_async"
    if separate and not config.actor_rollout_ref.get("hybrid_engine", True):
        raise SettingError(
            _KEY,
            steps,
            why="with actor_rollout_ref.hybrid_engine=false the reference lives in other processes than the "
            "policy",
            valid="null",
            fix=Line("actor_rollout_ref.hybrid_engine=true", more=f", or ~{_KEY}"),
        )
    _check_sharding(config)


def _check_unread(mixup_alpha: float) -> None:
    if mixup_alpha != 1:
        key = f"{SECTION}.ref_model_mixup_alpha"
        raise SettingError(
            key,
            mixup_alpha,
            why=f"{_KEY} is null, so that nothing is mixed into the reference",
            valid="1.0",
            fix=Line(f"++{_KEY}=<training steps between refreshes>", more=f", or ~{key}"),
        )


def _check_sharding(config: DictConfig) -> None:
    """Refuse a reference that FSDP's settings certainly shard unlike the policy."""
    models = config.actor_rollout_ref
    strategy = models.actor.get("strategy")
    if strategy not in {"fsdp", "fsdp2"}:
        return
    if (other := models.ref.get("strategy", strategy)) != strategy:
        raise _sharded_otherwise("strategy", other, strategy, strategy)
    ranks = config.trainer.nnodes * config.trainer.n_gpus_per_node
    cuts: dict[str, Callable[[Any], object]] = {
        "fsdp_size": lambda size: size if 0 <= size < ranks else ranks
    }
    if strategy == "fsdp":
        cuts |= {"use_orig_params": bool, "wrap_policy": _written}
    for name, cut in cuts.items():
        policy, reference = models.actor.fsdp_config.get(name), models.ref.fsdp_config.get(name)
        if cut(policy) != cut(reference):
            key = f"fsdp_config.{name}"
            is_section = name == "wrap_policy"
            typed = f"${{{ACTOR}.{key}}}" if is_section else str(policy).lower()
            raise _sharded_otherwise(key, reference, policy, typed)


def _written(section: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what a section says; 0, null and an absent key are the same."""
    return {key: value for key, value in (section or {}).items() if value}


def _sharded_otherwise(name: str, reference: Any, policy: Any, typed: str) -> SettingError:
    key, last = f"actor_rollout_ref.ref.{name}", name.rpartition(".")[2]
    return SettingError(
        key,
        reference,
        why=f"with {_KEY} the reference is sharded like the policy, whose {last} is {policy}",
        valid=str(policy).lower(),
        fix=Line(f"{key}={typed}", without=(key,) if typed.startswith("$") else ()),
    )


def has_adapter(config: DictConfig) -> bool:
    """Whether the policy is trained by LoRA."""
    model = config.actor_rollout_ref.model
    rank = (model.get("lora") or {}).get("rank", 0) or model.get("lora_rank", 0)
    return rank > 0 or model.get("lora_adapter_path") is not None


REFERENCE_REFRESH = Feature(
    uses={"refresh": has_option("ref_model_sync_steps")},
    without_our_mode="the reference that algorithm.grpo_ext.ref_model_sync_steps asks for is never refreshed "
    "there",
    refusals=(
        Refusal(
            ("refresh",),
            UNTRIED_ENGINES,
            f"{ACTOR}.strategy",
            "the reference that algorithm.grpo_ext.ref_model_sync_steps asks for cannot follow the policy "
            "there",
            REFRESH_ENGINES,
            Line(*ON_FSDP2, more=", or ~algorithm.grpo_ext.ref_model_sync_steps"),
        ),
    ),
    checks={"reference": check_reference},
    done_by_trainer={"ref_model_sync_steps": "refreshes the reference"},
    trainer="reference.trainer:ReferenceSyncTrainerMixin",
)
