"""What a worker tells GVPO's loss of rows whose policy has not moved, for calls outside a training."""

import torch

from grpo_verl_ext.verl_plugin.wire import GroupRows


def at_first_update(rows: int, group_size: int) -> GroupRows:
    """Rows of complete groups."""
    zeros = torch.zeros(rows)
    return GroupRows(
        index=zeros.long(),
        size=torch.full((rows,), group_size),
        drift=zeros,
        old_deviation=zeros,
        anchor_deviation=zeros,
    )
