"""``algorithm.grpo_ext.ref_sync_steps`` and ``ref_mixup_alpha``, typed and checked."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grpo_verl_ext.verl_plugin.errors import SettingError
from grpo_verl_ext.verl_plugin.options import SECTION, grpo_ext, is_number

KEYS = ("ref_sync_steps", "ref_mixup_alpha")


@dataclass(frozen=True)
class ReferenceSettings:
    """When the reference follows the policy, and how far.

    Attributes:
        ref_sync_steps: refresh after every so many training steps; null: never, as in verl.
        ref_mixup_alpha: α of π_ref ← α π_θ + (1 − α) π_ref, in (0, 1]. 1, Algorithm 1 of arXiv 2402.03300,
            sets the reference to the policy; TRL's default is 0.6 (every 512 steps).
    """

    ref_sync_steps: int | None = None
    ref_mixup_alpha: float = 1.0

    @classmethod
    def from_config(cls, algorithm: Mapping[str, Any]) -> "ReferenceSettings":
        """Read and check the two keys of verl's ``algorithm`` section.

        Raises:
            ValueError: a value outside its range.
        """
        options = grpo_ext(algorithm)
        settings = cls(**{key: options[key] for key in KEYS if key in options})
        steps, alpha = settings.ref_sync_steps, settings.ref_mixup_alpha
        if steps is not None and (type(steps) is not int or steps < 1):
            key = f"{SECTION}.ref_sync_steps"
            raise SettingError(
                key, steps, valid="an integer ≥ 1, or null for a reference that stays", fix=f"{key}=512"
            )
        if not is_number(alpha) or not 0 < alpha <= 1:
            key = f"{SECTION}.ref_mixup_alpha"
            raise SettingError(key, alpha, valid="a number in (0, 1]", fix=f"{key}=1.0")
        return settings
