"""Statistics of a whole mini-batch, from its rows on several ranks: the same for every cut of it.

A loss sees a micro-batch. What it needs of the others, a mean over all tokens or a rank among them, is a
*statistic*: a function of `MiniBatchRows`, which `evaluated` calls with the rows of all parts in one order.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from grpo_verl_ext.algorithms.validation import TensorError


class MiniBatchRows(NamedTuple):
    """R responses at the policy before the update, in an order that does not depend on the cut.

    Tokens that the policy did not write are left out, so that row i has its n_i tokens first.

    Attributes:
        log_prob: (R, T) fp64, as ``old_log_prob`` and ``advantages``; nats; 0 under the mask.
        response_mask: (R, T) bool, the first n_i tokens of each row.
        prompt: (R,) int64, number of each row's prompt; a row of padding has one of its own.
        prompt_size: (R,) int64, the responses with tokens that this prompt has in the rollout.
        seed: differs between updates, and is the same on all ranks.
    """

    log_prob: Tensor
    old_log_prob: Tensor
    advantages: Tensor
    response_mask: Tensor
    prompt: Tensor
    prompt_size: Tensor
    seed: int


_Statistic = Callable[[MiniBatchRows], Tensor]
"""Rows → a number for each token, (R, T), or what broadcasts to it: (R, 1) for responses, () for all."""


class PartOfRows(NamedTuple):
    """Rows of one rank, laid end to end, without the tokens that the policy did not write.

    Attributes:
        tokens: (3, N): log-probs, old log-probs, advantages.
        rows: (4, R) int64: tokens of each row, its number in the rollout, its prompt, its prompt's size.
    """

    tokens: Tensor
    rows: Tensor


def evaluated(statistic: _Statistic, parts: Sequence[PartOfRows], own: int, seed: int) -> Tensor:
    """Return the statistic of the rows of all parts for the tokens of part ``own``: (N,) fp64."""
    tokens = torch.cat([part.tokens.double() for part in parts], dim=1)
    lengths, number, prompt, prompt_size = torch.cat([part.rows for part in parts], dim=1)
    order = number.argsort(stable=True)
    width = max(1, int(lengths.max()))  # all rows may be padding
    position = torch.arange(width, device=lengths.device)
    mask = position < lengths[order].unsqueeze(-1)
    begins = lengths.cumsum(0) - lengths
    place = (begins[order].unsqueeze(-1) + position)[mask]
    log_prob, old_log_prob, advantages = tokens.new_zeros(3, *mask.shape).masked_scatter(
        mask, tokens[:, place]
    )
    rows = MiniBatchRows(log_prob, old_log_prob, advantages, mask, prompt[order], prompt_size[order], seed)
    result = torch.empty_like(tokens[0])
    values = statistic(rows)
    try:
        result[place] = values.double().broadcast_to(mask.shape)[mask]
    except RuntimeError as error:
        raise TensorError(
            f"a statistic of {len(mask)} rows has shape {tuple(values.shape)}; valid is {tuple(mask.shape)}, "
            f"a number for each token, or ({len(mask)}, 1), or (). Return values[:, None] for one per row"
        ) from error
    begin = sum(part.tokens.shape[1] for part in parts[:own])
    return result[begin : begin + parts[own].tokens.shape[1]]
