"""Checks that arguments fit together, by shape and dtype alone, so that nothing waits for a GPU."""

import torch
from torch import Tensor


class TensorError(ValueError):
    """Arguments do not fit each other; the message has what is there, what is valid and what to pass."""


def check_same_shape(**tensors: Tensor) -> None:
    """Refuse tensors whose shape differs from that of the first."""
    (first, reference), *others = tensors.items()
    for name, tensor in others:
        if tensor.shape != reference.shape:
            raise TensorError(
                f"{name} has shape {tuple(tensor.shape)}, but {first} has {tuple(reference.shape)}; "
                f"valid is the same for both. Pass {name} of shape {tuple(reference.shape)}"
            )


def check_dtype(dtype: torch.dtype, **tensors: Tensor) -> None:
    """Refuse tensors of another dtype."""
    for name, tensor in tensors.items():
        if tensor.dtype != dtype:
            raise TensorError(f"{name} is {tensor.dtype}; valid is {dtype}. Pass {name}.to({dtype})")


def check_floating(**tensors: Tensor) -> None:
    """Refuse tensors of integers or booleans, whose dtype cannot hold an advantage, or of unlike shapes."""
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            raise TensorError(f"{name} is {tensor.dtype}; valid is a floating dtype. Pass {name}.float()")
    check_same_shape(**tensors)


def check_matrix(**tensors: Tensor) -> None:
    """Refuse tensors that are not (B, T) with T ≥ 1; B may be 0."""
    for name, tensor in tensors.items():
        if tensor.dim() != 2 or tensor.shape[1] == 0:
            raise TensorError(
                f"{name} has shape {tuple(tensor.shape)}; valid is (B, T) with T ≥ 1. "
                f"Pass {name} with a row for each response and a column for each token"
            )


def check_rows(response_mask: Tensor, group: Tensor) -> None:
    """Refuse a mask that is not (B, T), or a ``group`` that is not (B,) int64."""
    check_matrix(response_mask=response_mask)
    check_dtype(torch.int64, group=group)
    if group.shape != response_mask.shape[:1]:
        raise TensorError(
            f"group has shape {tuple(group.shape)}, but response_mask has {len(response_mask)} rows; valid "
            f"is one number a row. Pass group=dense_group_ids(<{len(response_mask)} ids>)"
        )
