"""Sections, keys and values of verl's configuration, as messages name them."""

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
MODEL = "actor_rollout_ref.model.path"

RUNTIME_ENVIRONMENT = "ray_kwargs.ray_init.runtime_env.env_vars"
"""Environment variables that verl hands to every process of a training."""

GROUP_MODES = ("group_sync", "group_colocate_async", "group_separate_async")
"""Values of ``trainer.v1.trainer_mode`` that keep groups whole."""
