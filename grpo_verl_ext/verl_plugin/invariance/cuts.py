"""Ways to cut the rows of a mini-batch into data-parallel ranks and micro-batches."""

from collections.abc import Callable

import torch

_MAX_TOKENS = 48
"""Budget of a micro-batch in `_dynamic`."""

RowNumbers = list[int]


def _whole(rows: RowNumbers, lengths: list[int]) -> list[RowNumbers]:  # noqa: ARG001  # all splits have one signature
    """Cut into one micro-batch."""
    return [rows]


def _halves(rows: RowNumbers, lengths: list[int]) -> list[RowNumbers]:  # noqa: ARG001
    """Cut into two micro-batches of equally many rows."""
    middle = len(rows) // 2
    return [rows[:middle], rows[middle:]]


def _singles(rows: RowNumbers, lengths: list[int]) -> list[RowNumbers]:  # noqa: ARG001
    """Cut into micro-batches of one row each."""
    return [[row] for row in rows]


def _uneven(rows: RowNumbers, lengths: list[int]) -> list[RowNumbers]:  # noqa: ARG001
    """Cut into one row, and all the others in reverse order."""
    return [rows[:1], rows[:0:-1]]


def _shuffled(rows: RowNumbers, lengths: list[int]) -> list[RowNumbers]:  # noqa: ARG001
    """Cut into two micro-batches of random size, with the rows in random order."""
    generator = torch.Generator().manual_seed(len(rows))
    order = [rows[i] for i in torch.randperm(len(rows), generator=generator).tolist()]
    middle = int(torch.randint(1, len(rows), (1,), generator=generator))
    return [order[:middle], order[middle:]]


def _dynamic(rows: RowNumbers, lengths: list[int]) -> list[RowNumbers]:
    """Cut by a budget of tokens: longest rows first, each into the first micro-batch where it fits."""
    parts: list[RowNumbers] = []
    for row in sorted(rows, key=lambda row: -lengths[row]):
        fitting = [part for part in parts if sum(lengths[r] for r in part) + lengths[row] <= _MAX_TOKENS]
        if fitting:
            fitting[0].append(row)
        else:
            parts.append([row])
    return parts


_Split = Callable[[RowNumbers, list[int]], list[RowNumbers]]
SPLITS: dict[str, _Split] = {
    "whole": _whole,
    "halves": _halves,
    "singles": _singles,
    "uneven": _uneven,
    "shuffled": _shuffled,
    "dynamic": _dynamic,
}
"""Name → function that cuts a rank's rows into micro-batches, given the length of every row."""


def cut(lengths: list[int], split: str, dp_size: int) -> list[list[RowNumbers]]:
    """Return the micro-batches of each rank; ranks get equally many rows, strided as by verl's balancing."""
    rows = list(range(len(lengths)))
    ranks = [rows[rank::dp_size] for rank in range(dp_size)]
    return [SPLITS[split](own, lengths) for own in ranks]
