"""SAPO: Gao et al., Soft Adaptive Policy Optimization, arXiv 2511.20347; verl's own loss."""

from grpo_verl_ext.catalogue.grpo import GRPO_OUTCOME
from grpo_verl_ext.catalogue.record import Algorithm, VerlsLoss

_SAPO = Algorithm(
    "sapo",
    "arXiv 2511.20347",
    GRPO_OUTCOME,
    VerlsLoss("sapo"),
    "seq-mean-token-mean",
    title="Gao et al., Soft Adaptive Policy Optimization",
    fixes="a hard clip: a smooth gate takes its place",
)
