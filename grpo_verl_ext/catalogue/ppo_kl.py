"""PPO as GRPO's paper states it, arXiv 2402.03300, eq. 1 and 2: a critic, and the KL in the reward."""

from grpo_verl_ext.catalogue.grpo import GRPO_LOSS
from grpo_verl_ext.catalogue.ppo import GAE
from grpo_verl_ext.catalogue.record import Algorithm

_PPO_KL = Algorithm(
    "ppo_kl",
    "arXiv 2402.03300, eq. 1",
    GAE,
    GRPO_LOSS,
    title="Shao et al., DeepSeekMath",
    fixes="for comparison: PPO with a critic, as GRPO's paper states it",
)
