"""The same mathematics for rows of different lengths laid end to end (nested tensors), without padding.

``values`` (N,) has the N tokens of all rows, and row i of B is ``values[offsets[i]:offsets[i + 1]]``;
``offsets`` (B+1,) int64 starts with 0 and ends with N. A row may be empty. A function whose docstring names
one of `advantages`, `aggregation` or `gvpo` returns what that returns for the same rows padded. Beside
arguments and result it takes the memory of one block of rows. Meant for the trainer's process: it reads the
offsets, which would wait for a GPU. No gradient flows. Shapes that differ, or offsets that do not fit, raise
`TensorError`.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from grpo_verl_ext.algorithms.validation import TensorError, check_floating, check_same_shape

BLOCK = 2**18
"""Tokens processed together, few enough to stay in a processor's cache."""


def _row_blocks(offsets: Tensor) -> Iterator[tuple[slice, slice]]:
    """Split the rows into blocks of at most `BLOCK` tokens, or one longer row; (rows, tokens) of each."""
    begins = offsets.tolist()
    rows, start = len(begins) - 1, 0
    for stop in range(1, rows + 1):
        if stop == rows or begins[stop + 1] - begins[start] > BLOCK:
            yield slice(start, stop), slice(begins[start], begins[stop])
            start = stop


def row_lengths(response_mask: Tensor, offsets: Tensor) -> Tensor:
    """Tokens of each row that the policy wrote: (N,) → (B,), fp64."""
    _check(offsets, response_mask=response_mask)
    return _per_block(offsets, lambda tokens: response_mask[tokens].bool(), "sum")


def row_sums(values: Tensor, response_mask: Tensor, offsets: Tensor) -> Tensor:
    """Σ_t m_t x_t over the tokens of each row: (N,) → (B,), fp64. See `aggregation.sequence_sums`."""
    _check(offsets, response_mask=response_mask, values=values)
    return _per_block(
        offsets, lambda tokens: torch.where(response_mask[tokens].bool(), values[tokens], 0), "sum"
    )


def row_log_ratio(log_prob: Tensor, old_log_prob: Tensor, response_mask: Tensor, offsets: Tensor) -> Tensor:
    """Σ_t (log_prob − old_log_prob) over the tokens of each row: (N,) → (B,), fp32 or better.

    See `gvpo.sequence_log_ratio`. Summed in fp64, so that it is the nearest number of its dtype.
    """
    check_floating(log_prob=log_prob, old_log_prob=old_log_prob)
    _check(offsets, response_mask=response_mask, log_prob=log_prob, old_log_prob=old_log_prob)
    wide = torch.promote_types(log_prob.dtype, torch.float32)
    ratios = _per_block(
        offsets,
        lambda tokens: torch.where(
            response_mask[tokens].bool(), log_prob[tokens].to(wide) - old_log_prob[tokens].to(wide), 0
        ),
        "sum",
    )
    return ratios.to(wide)


def response_probability(log_prob: Tensor, response_mask: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    """Means over rows of the probability exp Σ_t log_prob and of Σ_t log_prob: (N,) → (), () fp64, in nats.

    A row without tokens has probability 1. NaN under the mask reaches neither.
    """
    check_floating(log_prob=log_prob)
    if len(offsets) == 1:
        raise TensorError("offsets has no row; valid is one at least. Pass the offsets of a nested tensor")
    total = row_sums(log_prob, response_mask, offsets)
    return total.exp().mean(), total.mean()


def row_values(advantages: Tensor, response_mask: Tensor, offsets: Tensor) -> Tensor:
    """The value at each row's first token, 0 without one: (N,) → (B,). See `advantages.per_response`."""
    _check(offsets, response_mask=response_mask, advantages=advantages)
    nowhere, device = len(response_mask), response_mask.device
    places = _per_block(
        offsets,
        lambda tokens: torch.where(
            response_mask[tokens].bool(), torch.arange(tokens.start, tokens.stop, device=device), nowhere
        ),
        "min",
        nowhere,
    )
    first = places.long()
    found = first < nowhere
    result = advantages.new_zeros(len(first))
    result[found] = advantages[first[found]]
    return result


def on_row_tokens(advantages: Tensor, response_mask: Tensor, offsets: Tensor) -> Tensor:
    """One number per row, repeated on its tokens and 0 elsewhere: (B,), (N,) → (N,).

    See `advantages.on_tokens`.
    """
    _check(offsets, response_mask=response_mask)
    check_same_shape(rows=offsets[1:], advantages=advantages)
    result = torch.empty_like(response_mask, dtype=advantages.dtype)
    for rows, tokens in _row_blocks(offsets):
        repeated = advantages[rows].repeat_interleave(offsets[rows.start : rows.stop + 1].diff())
        result[tokens] = torch.where(response_mask[tokens].bool(), repeated, 0)
    return result


def _per_block(
    offsets: Tensor, terms: Callable[[slice], Tensor], reduce: str, initial: float = 0.0
) -> Tensor:
    """Sum or minimum of the terms of each row, in fp64; ``initial`` for an empty row: (B,)."""
    reduced = [
        torch.segment_reduce(
            terms(tokens).double(),
            reduce,
            offsets=offsets[rows.start : rows.stop + 1] - tokens.start,
            initial=initial,
        )
        for rows, tokens in _row_blocks(offsets)
    ]
    return torch.cat([torch.empty(0, dtype=torch.float64, device=offsets.device), *reduced])


def _check(offsets: Tensor, **values: Tensor) -> None:
    check_same_shape(**values)
    name, each = next(iter(values.items()))
    if each.dim() != 1 or int(offsets[-1]) != len(each):
        raise TensorError(
            f"{name} has shape {tuple(each.shape)}, but the rows end at {int(offsets[-1])}; valid is (N,) "
            f"with N the last of offsets. Pass {name}.values() of a nested tensor with its offsets()"
        )
