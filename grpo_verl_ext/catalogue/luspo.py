"""LUSPO: Liu et al., Length-Unbiased Sequence Policy Optimization, arXiv 2602.05261; GSPO with token sums."""

from grpo_verl_ext.catalogue.grpo import GRPO_OUTCOME
from grpo_verl_ext.catalogue.gspo import GSPO_LOSS
from grpo_verl_ext.catalogue.record import Algorithm

LUSPO = Algorithm(
    "luspo",
    "arXiv 2602.05261",
    GRPO_OUTCOME,
    GSPO_LOSS,
    "seq-mean-token-sum",
    title="Liu et al., Length-Unbiased Sequence Policy Optimization",
    fixes="GSPO's division by length, by which long responses count less",
)
