"""The steps of a batch, laid down by the trainer for the estimator, to which verl hands rewards only."""

from dataclasses import dataclass

from torch import Tensor

from grpo_verl_ext.verl_plugin.laid_down import LaidDown


@dataclass(frozen=True)
class Steps:
    """All S steps of the responses of a batch, (S,) each: see `algorithms.process`."""

    rewards: Tensor
    row: Tensor
    end: Tensor


STEPS = LaidDown[Steps]("steps")
"""The steps of the batch at hand; None under a trainer that does not lay them down."""
