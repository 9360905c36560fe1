"""Keys of verl's configuration that checks and messages name; how one is read, and set by a command line."""

import re
from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from grpo_verl_ext.utils.errors import Line, SettingError

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
FILTER = "algorithm.filter_groups.enable"
DISTILLATION = "distillation.distillation_loss"
AGENT_LOOP = f"{ROLLOUT}.agent.default_agent_loop"
RUNTIME_ENVIRONMENT = "ray_kwargs.ray_init.runtime_env.env_vars"
"""Environment variables that verl passes to every process of a training."""
PATCHES_VARIABLE = "GRPO_VERL_EXT_PATCHES"
"""Environment variable with the names of the patches of this training, separated by commas."""

FULLY_ASYNC, ONE_STEP_OFF = "async_training", "rollout"
"""Top-level sections that verl's drivers of these names have, and its ``main_ppo`` lacks."""

SECTION = "algorithm.grpo_ext"
"""The section that this package adds to verl's configuration."""
PRESET = f"{SECTION}.preset"

REWARD_MANAGER = "rule_and_model"
"""Value of ``reward.reward_manager.name``: weighted sum of a reward function and a reward model."""

_LEGACY: Mapping[str, str] = {
    "reward_model.num_workers": "reward.num_workers",
    "reward_model.reward_manager": "reward.reward_manager.name",
    "reward_model.reward_loop_source": "reward.reward_manager.source",
    "reward_model.reward_loop_module_path": "reward.reward_manager.module.path",
    "reward_model.reward_loop_class_name": "reward.reward_manager.module.name",
    "reward_model.model.path": "reward.reward_model.model_path",
    "reward_model.reward_kwargs": "reward.reward_kwargs",
    "reward_model": "reward.reward_model",
    "custom_reward_function": "reward.custom_reward_function",
    "sandbox_fusion": "reward.sandbox_fusion",
}
"""Keys and sections of older verl → their new places, as in verl's ``migrate_legacy_reward_impl``.

verl 0.9's ``main_ppo`` accepts the old keys without migrating them. The longest matching key applies.
"""


def setting(config: DictConfig, key: str, default: Any = None) -> Any:
    """Return the value of a dotted key; ``default`` where it is null or missing."""
    value = OmegaConf.select(config, key, throw_on_resolution_failure=False)
    return default if value is None else value


def written(algorithm: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the section ``grpo_ext`` of verl's ``algorithm`` unchecked; empty if there is none."""
    if algorithm is None:
        return {}
    if not isinstance(algorithm, Mapping):
        raise SettingError(
            "algorithm", algorithm, valid="a section", fix=Line(f"algorithm.adv_estimator={algorithm}")
        )
    section = algorithm.get("grpo_ext")
    if section is None:
        return {}
    if not isinstance(section, Mapping):
        raise SettingError(SECTION, section, valid="a section, or null", fix=Line(f"{SECTION}=null"))
    return section


def moved_key(key: str) -> str:
    """Return the new place of a key of older verl; the key itself if it has not moved."""
    moved = max((old for old in _LEGACY if key == old or key.startswith(f"{old}.")), key=len, default="")
    return _LEGACY[moved] + key.removeprefix(moved) if moved else key


_WORD = re.compile(r"(?:~|\+{0,2})(?P<key>[^=@\s]+)(?:@[^=\s]*)?(?:=.*)?", re.S)
"""Matches a word of a command line of Hydra's: ``key=value``, ``+key=value``, ``++key=value``, ``~key``."""


def key_of(word: str) -> str:
    """Return the key of an override; of ``+algo@_global_=gvpo``, whose package is left out, ``algo``."""
    found = _WORD.fullmatch(word)
    return found["key"] if found else ""
