"""GSPO: Zheng et al., Group Sequence Policy Optimization, arXiv 2507.18071; verl's own loss."""

from grpo_verl_ext.catalogue.clipped import check_clip_range
from grpo_verl_ext.catalogue.grpo import GRPO_OUTCOME
from grpo_verl_ext.catalogue.record import Algorithm, VerlsLoss
from grpo_verl_ext.catalogue.weights import ONE_OUTPUT, WHOLE_RESPONSES

GSPO_LOSS = VerlsLoss(
    "gspo",
    one_output=ONE_OUTPUT,
    settings=(check_clip_range,),
    requires=(WHOLE_RESPONSES,),
)

GSPO = Algorithm(
    "gspo",
    "arXiv 2507.18071",
    GRPO_OUTCOME,
    GSPO_LOSS,
    "seq-mean-token-mean",
    title="Zheng et al., Group Sequence Policy Optimization",
    fixes="ratios of tokens, whose noise adds up: one ratio for the whole response",
)
