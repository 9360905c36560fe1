"""MaxRL: Tajwar et al., Maximum Likelihood Reinforcement Learning, arXiv 2602.02710."""

from grpo_verl_ext.algorithms.advantages import mean_scaled
from grpo_verl_ext.catalogue.dapo import DAPO_LOSS
from grpo_verl_ext.catalogue.record import Algorithm, Estimator
from grpo_verl_ext.catalogue.requires import Off
from grpo_verl_ext.catalogue.verls import PUNISHES, overlong_punishment

_BELOW_0 = "below 0, at which MaxRL, dividing by the mean reward of a prompt, ends the training"

_MAXRL = Algorithm(
    "maxrl",
    "arXiv 2602.02710",
    Estimator(
        "maxrl",
        str(mean_scaled.__doc__),
        mean_scaled,
        requires=(
            Off(PUNISHES, f"makes a long response's reward of 0 fall {_BELOW_0}", when=overlong_punishment),
        ),
    ),
    DAPO_LOSS,
    title="Tajwar et al., Maximum Likelihood Reinforcement Learning",
    fixes="expected reward, by which rare right answers count little",
)
