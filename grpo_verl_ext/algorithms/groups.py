"""Statistics over the responses to one prompt, as segment sums: any order of rows, any group sizes.

Everything here maps one number per response to one number per response, so no function needs to know how
many groups there are. ``member`` (B,) bool marks the rows that are responses; the others (padding) belong to
no group, whatever their ids and values.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from grpo_verl_ext.algorithms.validation import TensorError, check_dtype, check_same_shape


def dense_group_ids(index: npt.ArrayLike, device: torch.device | str | None = None) -> Tensor:
    """Number the distinct ids of the rows 0, 1, 2, …: (B,) strings or integers → (B,) int64.

    Equal ids get equal numbers, in the order of their first appearance.
    """
    numbers: dict[object, int] = {}
    try:
        # As objects, for as an array 1 and "1" are the same text.
        names = (x.item() if hasattr(x, "item") else x for x in np.asarray(index, dtype=object).tolist())
        rows = [numbers.setdefault(name, len(numbers)) for name in names]
    except (ValueError, TypeError) as error:  # ragged, a single id, or rows of several
        raise TensorError(
            f"index is {index!r:.80} ({error}); valid is (B,), one id a row. Pass index=<(B,) ids>"
        ) from error
    return torch.tensor(rows, dtype=torch.int64, device=device)


def group_sum(values: Tensor, group: Tensor) -> Tensor:
    """Σ_{j in the group of i} values_j, for every row i: (B,) → (B,)."""
    return torch.zeros_like(values).index_add(0, group, values)[group]


def group_deviation(values: Tensor, group: Tensor, member: Tensor) -> Tensor:
    """values_i − mean of its group, for every member; 0 for the other rows: (B,) → (B,).

    Values are first measured from their group's lowest, so that equal values give exactly 0 and a common
    offset costs no precision. A value that is not finite makes its own group NaN, and no other.
    """
    check_same_shape(group=group, values=values, member=member)
    check_dtype(torch.int64, group=group)
    check_dtype(torch.bool, member=member)
    values = torch.where(member, values, torch.inf)
    lowest = torch.full_like(values, torch.inf).scatter_reduce(0, group, values, "amin")[group]
    height = torch.where(member, values - lowest, 0)
    mean = group_sum(height, group) / group_sum(member.to(height.dtype), group)
    return torch.where(member, height - mean, 0)


def group_std(deviation: Tensor, group: Tensor, member: Tensor) -> Tensor:
    """Sample standard deviation √(Σ d² / (n − 1)) of the group of each row, from d = `group_deviation`.

    (B,) → (B,), in the units of ``deviation``; 0 for a group of one.
    """
    degrees_of_freedom = (group_sum(member.to(deviation.dtype), group) - 1).clamp(min=1)
    return (group_sum(deviation.square(), group) / degrees_of_freedom).sqrt()
