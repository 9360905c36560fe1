"""Read from each preset ``+algo=`` which estimator, loss and settings make its algorithm.

The presets are the one place that says so; `invariance` measures them and `anatomy` weighs with them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

NUMBERS = ("clip_ratio", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c", "tau_pos", "tau_neg")
"""Keys of verl's section ``actor`` that a loss reads, besides ``loss_agg_mode`` and ``loss_scale_factor``."""


@dataclass(frozen=True)
class Algorithm:
    """An estimator and a loss that belong together, by their names in verl's configuration.

    Attributes:
        scale_rewards: ``algorithm.grpo_ext.scale_rewards``, None for the estimator's own.
        numbers: those of `NUMBERS` that are set.
        values: all that the preset sets, as in its file.
    """

    adv_estimator: str
    loss_mode: str
    loss_agg_mode: str
    scale_rewards: str | None = None
    numbers: Mapping[str, Any] = field(default_factory=dict)
    values: DictConfig = field(default_factory=lambda: DictConfig({}), compare=False)


def _read() -> dict[str, Algorithm]:
    folder = files("grpo_verl_ext.config") / "algo"
    presets = sorted(file.name for file in folder.iterdir() if file.name.endswith(".yaml"))
    return {name.removesuffix(".yaml"): _algorithm((folder / name).read_text("utf-8")) for name in presets}


def _algorithm(text: str) -> Algorithm:
    preset = cast(DictConfig, OmegaConf.create(text))
    actor = preset.actor_rollout_ref.actor
    return Algorithm(
        preset.algorithm.adv_estimator,
        actor.policy_loss.loss_mode,
        actor.loss_agg_mode,
        (preset.algorithm.get("grpo_ext") or {}).get("scale_rewards"),
        {name: actor[name] for name in NUMBERS if name in actor},
        preset,
    )


PRESETS: Mapping[str, Algorithm] = _read()
"""All presets by name."""
