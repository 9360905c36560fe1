"""What can be said of the reference refresh from the configuration alone, before any rollout."""

from omegaconf import DictConfig

from grpo_verl_ext.verl_plugin.findings import SettingError
from grpo_verl_ext.verl_plugin.reference.settings import ReferenceSettings

KEY = "algorithm.grpo_ext.ref_sync_steps"


def check_reference(config: DictConfig) -> None:
    """Refuse to refresh a reference that is not there, or not in the workers that hold the policy.

    Trainers and engines are the business of `preflight.support`.

    Raises:
        ValueError: key, value seen, valid values and the line to type.
    """
    steps = ReferenceSettings.from_config(config.algorithm).ref_sync_steps
    if steps is None:
        return
    if not (config.actor_rollout_ref.actor.use_kl_loss or config.algorithm.use_kl_in_reward):
        raise SettingError(
            f"{KEY} is {steps}, but there is no reference to refresh: neither "
            f"actor_rollout_ref.actor.use_kl_loss nor algorithm.use_kl_in_reward is true. "
            f"Type: actor_rollout_ref.actor.use_kl_loss=true, or ~{KEY}",
            key=KEY,
        )
    if _has_adapter(config):
        raise SettingError(
            f"{KEY} is {steps}, but with LoRA the reference is the policy without its adapter, which nothing "
            f"can refresh; valid is null. Type: ~{KEY}",
            key=KEY,
        )
    separate = config.trainer.v1.trainer_mode == "group_separate_async"
    if separate and not config.actor_rollout_ref.get("hybrid_engine", True):
        raise SettingError(
            f"{KEY} is {steps}, but with actor_rollout_ref.hybrid_engine=false the reference lives in other "
            f"processes than the policy; valid is true. Type: actor_rollout_ref.hybrid_engine=true",
            key=KEY,
        )


def _has_adapter(config: DictConfig) -> bool:
    model = config.actor_rollout_ref.model
    rank = (model.get("lora") or {}).get("rank", 0) or model.get("lora_rank", 0)
    return rank > 0 or model.get("lora_adapter_path") is not None
