"""Log-probs and entropies of rows of logits, in little memory."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from verl.utils.torch_functional import logprobs_from_logits

_ROWS = 64
"""Rows of logits whose exponentials are in memory at once."""


class _LogProbs(torch.autograd.Function):
    """log softmax(logits)[row, label]; the backward pass makes one tensor of the logits' size."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, row: Tensor, label: Tensor) -> Tensor:
        total = by_rows(lambda part: part.logsumexp(-1), logits)
        ctx.save_for_backward(logits, total, row, label)
        return logits[row, label] - total[row]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        logits, total, row, label = ctx.saved_tensors
        of_rows = torch.zeros_like(total).index_add_(0, row, grads[0])
        found = (logits - total[:, None]).exp_().mul_(-of_rows[:, None])
        found.index_put_((row, label), grads[0], accumulate=True)
        return found, None, None


def by_rows(function: Callable[[Tensor], Tensor], logits: Tensor) -> Tensor:
    """Return what a function of each row gives, (K,), for few rows at a time."""
    return torch.cat([function(part) for part in torch.split(logits, _ROWS)])


def log_probs(logits: Tensor, row: Tensor, label: Tensor) -> Tensor:
    """Return log softmax(logits)[row, label], (T,), of K rows of logits, (K, V).

    In half precision by verl's function, for which the rows are repeated. Gradient flows to the logits.
    """
    if logits.dtype in (torch.float32, torch.float64):
        found: Tensor = _LogProbs.apply(logits, row, label)  # type: ignore[no-untyped-call]
        return found
    return logprobs_from_logits(logits=logits[row], labels=label)  # type: ignore[no-any-return]
