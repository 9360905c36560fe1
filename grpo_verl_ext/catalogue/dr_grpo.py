"""Dr. GRPO: Liu et al., Understanding R1-Zero-Like Training, arXiv 2503.20783."""

from grpo_verl_ext.algorithms.advantages import centred
from grpo_verl_ext.catalogue.averages import CONSTANT_LENGTH
from grpo_verl_ext.catalogue.clipped import clipped_loss
from grpo_verl_ext.catalogue.record import Algorithm, Estimator

DR_GRPO = Algorithm(
    "dr_grpo",
    "arXiv 2503.20783",
    Estimator("dr_grpo", str(centred.__doc__), centred),
    clipped_loss("dr_grpo", CONSTANT_LENGTH),
    title="Liu et al., Understanding R1-Zero-Like Training",
    fixes="GRPO's divisions by length and standard deviation, which favour long wrong responses",
)
"""Tokens are summed and divided by the response budget: `aggregation.sequence_mean_constant_length`."""
