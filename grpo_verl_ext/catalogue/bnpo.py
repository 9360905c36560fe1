"""BNPO as TRL has it: GRPO's loss, averaged over the tokens of each micro-batch; it depends on the split."""

from grpo_verl_ext.catalogue.averages import LOCAL_TOKEN_MEAN
from grpo_verl_ext.catalogue.clipped import clipped_loss
from grpo_verl_ext.catalogue.grpo import GRPO_OUTCOME
from grpo_verl_ext.catalogue.record import Algorithm

_BNPO = Algorithm(
    "bnpo",
    "TRL's loss_type bnpo",
    GRPO_OUTCOME,
    clipped_loss("bnpo", LOCAL_TOKEN_MEAN),
    fixes="for comparison: the mean over the tokens of the local batch",
)
