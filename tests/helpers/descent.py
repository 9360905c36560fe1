"""Descent to the minimum of a loss on a policy over a handful of responses."""

from collections.abc import Callable

import torch
from torch import Tensor


def minimise(loss_of: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """Log-probabilities of the softmax policy where L-BFGS, begun anew until it stays, comes to rest."""
    logits = start.detach().clone().requires_grad_()

    def closure() -> Tensor:
        logits.grad = None
        loss = loss_of(logits.log_softmax(0))
        loss.backward()
        return loss

    stops = {"max_iter": 200, "tolerance_grad": 1e-14, "tolerance_change": 1e-18}
    for _ in range(20):
        torch.optim.LBFGS([logits], **stops, line_search_fn="strong_wolfe").step(closure)
    return logits.detach().log_softmax(0)
