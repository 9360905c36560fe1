"""GRPO with outcome supervision: Shao et al., DeepSeekMath, arXiv 2402.03300, §4.1."""

from grpo_verl_ext.catalogue.averages import SEQUENCE_MEAN_TOKEN_MEAN
from grpo_verl_ext.catalogue.clipped import clipped_loss
from grpo_verl_ext.catalogue.record import Algorithm, Estimator

GRPO_OUTCOME = Estimator(
    "grpo_outcome",
    "Compute GRPO's outcome advantages Â = (r − mean r)/(std r + ε): `advantages.group_scaled`.",
    kl_in_loss=True,
)
GRPO_LOSS = clipped_loss("grpo", SEQUENCE_MEAN_TOKEN_MEAN)
"""Every response has equal weight, arXiv 2402.03300 eq. 3: `aggregation.sequence_mean_token_mean`."""

GRPO = Algorithm(
    "grpo",
    "arXiv 2402.03300, §4.1",
    GRPO_OUTCOME,
    GRPO_LOSS,
    title="Shao et al., DeepSeekMath",
    fixes="PPO's critic, a second model to train: the mean reward of a prompt's responses takes its place",
)
