"""TOPR: Le Roux et al., Tapered Off-Policy REINFORCE, arXiv 2503.14286."""

from grpo_verl_ext.algorithms.topr import topr_loss
from grpo_verl_ext.catalogue.averages import AVERAGES
from grpo_verl_ext.catalogue.grpo import DR_GRPO
from grpo_verl_ext.catalogue.record import Algorithm, TokenLoss
from grpo_verl_ext.catalogue.requires import ONE_OUTPUT, weighs_responses

_TOPR = Algorithm(
    "topr",
    "arXiv 2503.14286",
    DR_GRPO.estimator,
    TokenLoss(
        "topr",
        topr_loss,
        AVERAGES["seq-mean-token-sum"],
        keywords=lambda _: {},
        one_output=ONE_OUTPUT,
        requires=weighs_responses(
            "weighs better responses, too, where TOPR tapers worse ones alone (arXiv 2503.14286)"
        ),
    ),
    title="Le Roux et al., Tapered Off-Policy REINFORCE",
    fixes="off-policy updates that push bad responses down without limit: their weight is at most 1",
)
