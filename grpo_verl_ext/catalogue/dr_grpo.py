"""Dr. GRPO: Liu et al., Understanding R1-Zero-Like Training, arXiv 2503.20783."""

from collections.abc import Iterator

from omegaconf import DictConfig

from grpo_verl_ext.algorithms.advantages import centred
from grpo_verl_ext.catalogue.averages import CONSTANT_LENGTH
from grpo_verl_ext.catalogue.clipped import clipped_loss
from grpo_verl_ext.catalogue.record import Algorithm, Estimator
from grpo_verl_ext.utils.errors import Line, Problem
from grpo_verl_ext.utils.keys import SCALE_FACTOR, setting


def _advise_length(config: DictConfig) -> Iterator[Problem]:
    """Warn where Dr. GRPO's constant is not the response budget."""
    factor, budget = setting(config, SCALE_FACTOR), config.data.max_response_length
    if factor not in (None, budget):
        yield Problem(
            SCALE_FACTOR,
            factor,
            why=f"data.max_response_length is {budget}, which Dr. GRPO divides by (arXiv 2503.20783, §3.1 "
            "and its code); another constant scales the learning rate",
            fix=Line(f"{SCALE_FACTOR}=${{data.max_response_length}}"),
        )


DR_GRPO = Algorithm(
    "dr_grpo",
    "arXiv 2503.20783",
    Estimator("dr_grpo", str(centred.__doc__), centred),
    clipped_loss("dr_grpo", CONSTANT_LENGTH, advice={"constant-length": _advise_length}),
    title="Liu et al., Understanding R1-Zero-Like Training",
    fixes="GRPO's divisions by length and standard deviation, which favour long wrong responses",
)
"""Tokens are summed and divided by the response budget: `aggregation.sequence_mean_constant_length`."""
