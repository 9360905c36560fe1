"""The clipped surrogate of PPO and GRPO, as a loss of tokens: `CLIPPED`, with its metrics and checks.

``clip_ratio_low``, ``clip_ratio_high`` and, unless null, ``clip_ratio_c`` are the actor's. Losses that share
it differ only in their average.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from grpo_verl_ext.algorithms import surrogate
from grpo_verl_ext.catalogue.averages import Average
from grpo_verl_ext.catalogue.record import TokenLoss
from grpo_verl_ext.utils.errors import Line, SettingError
from grpo_verl_ext.utils.keys import ACTOR
from grpo_verl_ext.utils.options import is_number


class ClipRange(NamedTuple):
    """Clip range ε_low, ε_high (null: ``clip_ratio``, as in verl), and c of the dual clip or None."""

    low: float
    high: float
    c: float | None

    @classmethod
    def from_config(cls, config: Any) -> "ClipRange":
        """Read ``clip_ratio_low``, ``clip_ratio_high``, ``clip_ratio`` and ``clip_ratio_c``."""
        low, high, c = config.clip_ratio_low, config.clip_ratio_high, config.clip_ratio_c
        default = config.clip_ratio
        return cls(
            # An integer may exceed torch's range.
            low=float(default if low is None else low),
            high=float(default if high is None else high),
            c=None if c is None else float(c),
        )


def clipped_loss(name: str, average: Average) -> TokenLoss:
    """Return the clipped surrogate with an average of its own."""
    return TokenLoss(
        name,
        _clipped,
        average,
        clip_events,
        doc=f"{surrogate.clipped_surrogate.__doc__}\n\n    {surrogate.dual_clipped_surrogate.__doc__}",
        settings=(check_clip_range,),
    )


def check_clip_range(loss_mode: str, actor: Mapping[str, Any]) -> None:  # noqa: ARG001  # an `ActorCheck`
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


def _clipped(
    log_prob: Tensor, old_log_prob: Tensor, advantages: Tensor, response_mask: Tensor, config: Any
) -> Tensor:
    tokens, clip = (log_prob, old_log_prob, advantages, response_mask), ClipRange.from_config(config)
    if clip.c is None:
        return surrogate.clipped_surrogate(*tokens, clip_ratio_low=clip.low, clip_ratio_high=clip.high)
    return surrogate.dual_clipped_surrogate(
        *tokens, clip_ratio_low=clip.low, clip_ratio_high=clip.high, clip_ratio_c=clip.c
    )


def clip_events(
    log_ratio: Tensor, advantages: Tensor, response_mask: Tensor, config: Any
) -> surrogate.TokenEvents:
    """Return the tokens that the actor's clips cut off: `surrogate.token_events`."""
    clip = ClipRange.from_config(config)
    return surrogate.token_events(
        log_ratio,
        advantages,
        response_mask,
        clip_ratio_low=clip.low,
        clip_ratio_high=clip.high,
        clip_ratio_c=clip.c,
    )
