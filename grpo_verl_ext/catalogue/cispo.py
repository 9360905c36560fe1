"""CISPO: MiniMax-M1, arXiv 2506.13585; verl's own loss."""

from grpo_verl_ext.catalogue.clipped import check_clip_range
from grpo_verl_ext.catalogue.grpo import GRPO_OUTCOME
from grpo_verl_ext.catalogue.record import Algorithm, VerlsLoss
from grpo_verl_ext.utils.keys import ACTOR

_CISPO = Algorithm(
    "cispo",
    "arXiv 2506.13585",
    GRPO_OUTCOME,
    VerlsLoss("cispo", settings=(check_clip_range,)),
    "token-mean",
    fixed=(f"{ACTOR}.clip_ratio_low",),  # its weights have no lower bound (§3.1)
    title="MiniMax, MiniMax-M1",
    fixes="a clip that takes the gradient from rare tokens: their weight is capped instead",
)
