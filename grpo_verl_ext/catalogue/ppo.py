"""PPO with a critic, verl's own estimator, for comparison: Schulman et al., arXiv 1707.06347.

``ppo_kl`` is PPO as GRPO's paper states it, arXiv 2402.03300, eq. 1 and 2, with the KL in the reward.
"""

from grpo_verl_ext.catalogue.grpo import GRPO_LOSS
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

_PPO_KL = Algorithm(
    "ppo_kl",
    "arXiv 2402.03300, eq. 1",
    GAE,
    GRPO_LOSS,
    title="Shao et al., DeepSeekMath",
    fixes="for comparison: PPO with a critic, as GRPO's paper states it",
)
