"""MaxRL: Tajwar et al., Maximum Likelihood Reinforcement Learning, arXiv 2602.02710."""

from grpo_verl_ext.algorithms.advantages import mean_scaled
from grpo_verl_ext.catalogue.dapo import DAPO_LOSS
from grpo_verl_ext.catalogue.record import Algorithm, Estimator

MAXRL = Algorithm(
    "maxrl",
    "arXiv 2602.02710",
    Estimator("maxrl", str(mean_scaled.__doc__), mean_scaled),
    DAPO_LOSS,
    title="Tajwar et al., Maximum Likelihood Reinforcement Learning",
    fixes="expected reward, by which rare right answers count little",
)
