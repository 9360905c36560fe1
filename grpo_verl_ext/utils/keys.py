"""Keys of verl's configuration that checks and messages name, and how one is read."""

from typing import Any

from omegaconf import DictConfig, OmegaConf

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
MODEL = "actor_rollout_ref.model.path"
POLICY_LOSS = f"{ACTOR}.policy_loss"
LOSS = f"{POLICY_LOSS}.loss_mode"
AGGREGATION = f"{ACTOR}.loss_agg_mode"
SCALE_FACTOR = f"{ACTOR}.loss_scale_factor"
ESTIMATOR = "algorithm.adv_estimator"
MODE = "trainer.v1.trainer_mode"
CORRECTION = "algorithm.rollout_correction"
BYPASS = f"{CORRECTION}.bypass_mode"
DISTILLATION = "distillation.distillation_loss"
AGENT_LOOP = f"{ROLLOUT}.agent.default_agent_loop"
RUNTIME_ENVIRONMENT = "ray_kwargs.ray_init.runtime_env.env_vars"
"""Environment variables that verl passes to every process of a training."""

SECTION = "algorithm.grpo_ext"
"""The section that this package adds to verl's configuration."""


def setting(config: DictConfig, key: str, default: Any = None) -> Any:
    """Return the value of a dotted key; ``default`` where it is null or missing."""
    value = OmegaConf.select(config, key, throw_on_resolution_failure=False)
    return default if value is None else value
