"""Options of the reward manager ``rule_and_model``, all under ``algorithm.grpo_ext.reward_model``."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from grpo_verl_ext.verl_plugin.errors import SettingError
from grpo_verl_ext.verl_plugin.options import grpo_ext, is_number, section

KEY = "reward_model"
"""Their section of ``algorithm.grpo_ext``."""

MANAGER = "rule_and_model"


@dataclass(frozen=True)
class RewardModelSettings:
    """Read and checked.

    Attributes:
        path: folder or hub name of a sequence classifier with one output, asked in verl's reward processes;
            None asks verl's reward-model server, ``reward.reward_model``.
        weight: factor of its score.
        rule_weight: factor of what verl's reward function returns.
    """

    path: str | None = None
    weight: float = 1.0
    rule_weight: float = 1.0

    @classmethod
    def from_config(cls, algorithm: Mapping[str, Any] | None) -> "RewardModelSettings":
        """Read verl's ``algorithm`` section.

        Raises:
            ValueError: an unknown key, a weight that is no finite number, or a path that is none.
        """
        options = section(grpo_ext(algorithm).get(KEY), f"algorithm.grpo_ext.{KEY}")
        valid = [field.name for field in fields(cls)]
        for name, value in options.items():
            key = f"algorithm.grpo_ext.{KEY}.{name}"
            if name not in valid:
                raise SettingError(
                    key, value, seen=f"{key}={value!r} is not an option", valid=valid, fix=f"~{key}"
                )
            if name == "path" and not isinstance(value, str | None):
                raise SettingError(key, value, valid="a folder, or a name on a hub", fix=f"{key}=<folder>")
            if name != "path" and not is_number(value):
                raise SettingError(key, value, valid="a finite number", fix=f"{key}=1.0")
        return cls(**options)
