"""CISPO: MiniMax-M1, arXiv 2506.13585; verl's own loss."""

from collections.abc import Iterator

from omegaconf import DictConfig

from grpo_verl_ext.catalogue.clipped import check_clip_range, clip_ratio
from grpo_verl_ext.catalogue.grpo import GRPO_OUTCOME
from grpo_verl_ext.catalogue.record import DUAL_CLIP, Algorithm, VerlsLoss
from grpo_verl_ext.utils.errors import Line, Problem
from grpo_verl_ext.utils.keys import ACTOR


def _advise_lower_bound(config: DictConfig) -> Iterator[Problem]:
    """Warn of a lower bound on CISPO's weights, verl's default."""
    low = clip_ratio(config, "low")
    if low < 1:
        yield Problem(
            f"{ACTOR}.clip_ratio_low",
            low,
            why="CISPO's importance weights have no lower bound (arXiv 2506.13585, §3.1)",
            valid="a number ≥ 1, which bounds nothing",
            fix=Line(f"{ACTOR}.clip_ratio_low=1.0"),
        )


CISPO_LOSS = VerlsLoss(
    "cispo",
    unread=DUAL_CLIP,
    settings=(check_clip_range,),
    advice={"verls-losses": _advise_lower_bound},
)

CISPO = Algorithm(
    "cispo",
    "arXiv 2506.13585",
    GRPO_OUTCOME,
    CISPO_LOSS,
    "token-mean",
    fixed=(f"{ACTOR}.clip_ratio_low",),
    title="MiniMax, MiniMax-M1",
    fixes="a clip that takes the gradient from rare tokens: their weight is capped instead",
)
