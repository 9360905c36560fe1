"""CISPO: MiniMax-M1, arXiv 2506.13585; verl's own loss."""

from grpo_verl_ext.catalogue.clipped import check_clip_range
from grpo_verl_ext.catalogue.grpo import GRPO_OUTCOME
from grpo_verl_ext.catalogue.record import DUAL_CLIP, Algorithm, VerlsLoss
from grpo_verl_ext.catalogue.requires import AtLeast
from grpo_verl_ext.utils.keys import ACTOR

CISPO_LOSS = VerlsLoss(
    "cispo",
    unread=DUAL_CLIP,
    settings=(check_clip_range,),
    requires=(
        AtLeast(f"{ACTOR}.clip_ratio_low", 1, "bounds CISPO's weights from below (arXiv 2506.13585, §3.1)"),
    ),
)

CISPO = Algorithm(
    "cispo",
    "arXiv 2506.13585",
    GRPO_OUTCOME,
    CISPO_LOSS,
    "token-mean",
    title="MiniMax, MiniMax-M1",
    fixes="a clip that takes the gradient from rare tokens: their weight is capped instead",
)
