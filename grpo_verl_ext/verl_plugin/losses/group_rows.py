"""What a loss cannot see in its micro-batch: the group of each response, over all micro-batches and ranks.

verl's ``ppo_loss`` hands a registered loss no prompt id and no field of ours. The worker therefore lays the
rows of the micro-batch down here for the length of the call.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_verl_ext.verl_plugin.laid_down import LaidDown

GROUP_INDEX = "group_index"
GROUP_SIZE = "group_size"
GROUP_DRIFT = "group_drift"
"""Fields of the batch, one number per response: the trainer writes the first two, the worker the third."""


@dataclass(frozen=True)
class GroupRows:
    """For each response of a micro-batch, (B,) each.

    Attributes:
        index: number of its prompt within the rollout batch.
        size: k, responses of that prompt that have tokens: neither padding nor rejected.
        drift: Δ̄, mean of log π_θ(y) − log π_old(y) over them, at the policy before this update, in nats.
        weight_sums: (prompts of the rollout batch,); the loss adds the weight of each response to its prompt.
        old_is_current: the policy has not moved since ``old_log_probs`` were written down, so that they are
            the log-probs of this very update, which another forward pass rounded differently.
    """

    index: Tensor
    size: Tensor
    drift: Tensor
    weight_sums: Tensor
    old_is_current: bool = False


GROUPS = LaidDown[GroupRows]("group rows")
"""The rows of the micro-batch at hand; None under a trainer that does not keep groups."""


def at_first_update(rows: int, group_size: int, device: torch.device | None = None) -> GroupRows:
    """Rows of complete groups under a policy that has not moved: for a call outside a training."""
    return GroupRows(
        index=torch.zeros(rows, dtype=torch.int64, device=device),
        size=torch.full((rows,), group_size, device=device),
        drift=torch.zeros(rows, device=device),
        weight_sums=torch.zeros(1, device=device),
    )
