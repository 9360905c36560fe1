"""Lite PPO: Liu et al., Tricks or Traps?, arXiv 2508.08221; the scale of the whole batch, DAPO's average."""

from grpo_verl_ext.catalogue.dapo import DAPO_LOSS
from grpo_verl_ext.catalogue.grpo import GRPO_OUTCOME
from grpo_verl_ext.catalogue.record import Algorithm

_LITE_PPO = Algorithm(
    "lite_ppo",
    "arXiv 2508.08221",
    GRPO_OUTCOME,
    DAPO_LOSS,
    title="Liu et al., Tricks or Traps?",
    fixes="many tricks: two are kept, the batch's standard deviation and a mean over tokens",
)
