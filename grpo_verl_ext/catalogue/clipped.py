"""The clipped surrogate of PPO and GRPO as a loss of tokens, and the actor's clip range.

``clip_ratio_low``, ``clip_ratio_high`` and, unless null, ``clip_ratio_c`` are the actor's. Losses that share
the surrogate differ only in their average.
"""

from collections.abc import Mapping
from typing import Any

from grpo_verl_ext.algorithms.surrogate import clipped_surrogate, token_events
from grpo_verl_ext.catalogue.averages import Average
from grpo_verl_ext.catalogue.record import TokenLoss
from grpo_verl_ext.utils.errors import Line, SettingError
from grpo_verl_ext.utils.keys import ACTOR
from grpo_verl_ext.utils.options import is_number


def clip_range(config: Any) -> dict[str, float]:
    """Return ε_low and ε_high by their keys of ``actor``; a null one is ``clip_ratio``, as in verl."""
    sides = {name: getattr(config, name) for name in ("clip_ratio_low", "clip_ratio_high")}
    # An integer may exceed torch's range.
    return {name: float(config.clip_ratio if side is None else side) for name, side in sides.items()}


def clips(config: Any) -> dict[str, Any]:
    """Return the `clip_range` with c of the dual clip, None without one."""
    return {**clip_range(config), "clip_ratio_c": config.clip_ratio_c and float(config.clip_ratio_c)}


def clipped_loss(name: str, average: Average) -> TokenLoss:
    """Return the clipped surrogate, with the dual clip unless c is null, and an average of its own."""
    return TokenLoss(
        name,
        clipped_surrogate,
        average,
        token_events,
        keywords=clips,
        settings=(check_clip_range,),
    )


def check_clip_range(actor: Mapping[str, Any]) -> None:
    """Refuse a clip range that is none: a negative ε, or c ≤ 1."""
    for name in ("clip_ratio", "clip_ratio_low", "clip_ratio_high"):
        clip_ratio = actor.get(name, 0.2)
        falls_back = clip_ratio is None and name != "clip_ratio"
        if not falls_back and not (is_number(clip_ratio) and clip_ratio >= 0):
            full = f"{ACTOR}.{name}"
            raise SettingError(full, clip_ratio, valid="a finite number ≥ 0", fix=Line(f"{full}=0.2"))
    clip_ratio_c = actor.get("clip_ratio_c")
    if clip_ratio_c is not None and not (is_number(clip_ratio_c) and clip_ratio_c > 1):
        full = f"{ACTOR}.clip_ratio_c"
        raise SettingError(
            full, clip_ratio_c, valid="a number > 1, or null for no dual clip", fix=Line(f"{full}=null")
        )
