"""GDPO: Liu et al., Group reward-Decoupled Normalization Policy Optimization, arXiv 2601.05242."""

from grpo_verl_ext.algorithms.advantages import decoupled
from grpo_verl_ext.catalogue.dapo import DAPO_LOSS
from grpo_verl_ext.catalogue.record import Algorithm, Estimator

_GDPO = Algorithm(
    "gdpo",
    "arXiv 2601.05242",
    Estimator("gdpo_outcome", str(decoupled.__doc__), several_rewards=True),
    DAPO_LOSS,
    title="Liu et al., Group reward-Decoupled Normalization Policy Optimization",
    fixes="several rewards, of which one outweighs the others by its spread",
)
