"""RLOO: Ahmadian et al., Back to Basics, arXiv 2402.14740; the loss is verl's REINFORCE."""

from grpo_verl_ext.algorithms.advantages import leave_one_out
from grpo_verl_ext.catalogue.record import Algorithm, Estimator
from grpo_verl_ext.catalogue.verls import GPG

_RLOO = Algorithm(
    "rloo",
    "arXiv 2402.14740",
    Estimator("rloo_outcome", str(leave_one_out.__doc__), leave_one_out),
    GPG,
    "seq-mean-token-sum",
    title="Ahmadian et al., Back to Basics",
    fixes="PPO's critic and clip: REINFORCE with the mean of the other responses",
)
