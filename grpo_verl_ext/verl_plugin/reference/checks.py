"""The record of the feature ``ref_model_sync_steps``, its rows, and the check of its sharding."""

from collections.abc import Callable, Mapping
from typing import Any

from omegaconf import DictConfig

from grpo_verl_ext.catalogue import ON_FSDP2, STATISTIC_ENGINES
from grpo_verl_ext.catalogue.requires import OUR_MODES, If, In, Null, Trainer, refused
from grpo_verl_ext.utils.errors import Line, SettingError
from grpo_verl_ext.utils.keys import ACTOR, MODE, SECTION
from grpo_verl_ext.verl_plugin.config import Options
from grpo_verl_ext.verl_plugin.features import Feature, has_option

_KEY = f"{SECTION}.ref_model_sync_steps"


def check_reference(config: DictConfig) -> None:
    """Refuse a mixture without a refresh, and a reference that FSDP's settings shard unlike the policy.

    Raises:
        SettingError: the first wrong setting.
    """
    options = Options.from_config(config.algorithm)
    if options.ref_model_sync_steps is not None:
        _check_sharding(config)
    elif options.ref_model_mixup_alpha != 1:
        key = f"{SECTION}.ref_model_mixup_alpha"
        raise SettingError(
            key,
            options.ref_model_mixup_alpha,
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


_ADAPTER = "makes the reference the policy without its adapter, which nothing refreshes"
_WITHOUT = Line(f"~{_KEY}")

REFERENCE_REFRESH = Feature(
    name="reference",
    used=has_option("ref_model_sync_steps"),
    requires=refused(
        Trainer(OUR_MODES, "never refreshes the reference"),
        In(
            f"{ACTOR}.strategy",
            STATISTIC_ENGINES,
            "has a reference that cannot follow the policy",
            line=Line(*ON_FSDP2, more=f", or ~{_KEY}"),
        ),
        In(
            f"{ACTOR}.use_kl_loss",
            (True,),
            "leaves no reference to refresh",
            when=If("algorithm.use_kl_in_reward", (False, None)),
        ),
        In("actor_rollout_ref.model.lora_rank", (0, None), _ADAPTER, line=_WITHOUT),
        In("actor_rollout_ref.model.lora.rank", (0, None), _ADAPTER, line=_WITHOUT),
        Null("actor_rollout_ref.model.lora_adapter_path", _ADAPTER, line=_WITHOUT),
        In(
            "actor_rollout_ref.hybrid_engine",
            (True, None),
            "has the reference in other processes than the policy",
            when=If(MODE, ("grpo_ext_separate_async",)),
        ),
    ),
    checks={"reference": check_reference},
    done_by_trainer={"ref_model_sync_steps": "refreshes the reference"},
    trainer="reference.trainer:ReferenceSyncTrainerMixin",
)
