"""GSPO: Zheng et al., Group Sequence Policy Optimization, arXiv 2507.18071; verl's own loss.

LUSPO: Liu et al., Length-Unbiased Sequence Policy Optimization, arXiv 2602.05261; GSPO with token sums.
"""

from grpo_verl_ext.catalogue.clipped import check_clip_range
from grpo_verl_ext.catalogue.grpo import GRPO_OUTCOME
from grpo_verl_ext.catalogue.record import Algorithm, VerlsLoss
from grpo_verl_ext.catalogue.requires import AtMost
from grpo_verl_ext.catalogue.weights import ONE_OUTPUT, WHOLE_RESPONSES
from grpo_verl_ext.utils.errors import Line
from grpo_verl_ext.utils.keys import ACTOR

_LOSS = VerlsLoss(
    "gspo",
    one_output=ONE_OUTPUT,
    settings=(check_clip_range,),
    requires=(
        WHOLE_RESPONSES,
        *(
            AtMost(
                key,
                0.05,
                "clips nothing: a whole response's ratio to the power 1/|y| is near 1",
                line=Line(without=(key,), more=f"the same command without {key}, or the paper's"),
            )
            for key in (f"{ACTOR}.clip_ratio_low", f"{ACTOR}.clip_ratio_high")
        ),
    ),
)

GSPO = Algorithm(
    "gspo",
    "arXiv 2507.18071",
    GRPO_OUTCOME,
    _LOSS,
    "seq-mean-token-mean",
    title="Zheng et al., Group Sequence Policy Optimization",
    fixes="ratios of tokens, whose noise adds up: one ratio for the whole response",
)

_LUSPO = Algorithm(
    "luspo",
    "arXiv 2602.05261",
    GRPO_OUTCOME,
    _LOSS,
    "seq-mean-token-sum",
    title="Liu et al., Length-Unbiased Sequence Policy Optimization",
    fixes="GSPO's division by length, by which long responses count less",
)
