"""PPO with a critic, verl's own estimator, for comparison: Schulman et al., arXiv 1707.06347."""

from grpo_verl_ext.catalogue.record import Algorithm, VerlsEstimator
from grpo_verl_ext.catalogue.verls import VANILLA

GAE = VerlsEstimator("gae")

PPO = Algorithm(
    "ppo",
    "arXiv 1707.06347",
    GAE,
    VANILLA,
    "token-mean",
    title="Schulman et al., Proximal Policy Optimization",
    fixes="for comparison: a critic",
)
