"""Average the token weights over responses of similar length, right and wrong."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

MOST_BINS = 5
_ALIKE = 3
"""Variants whose weights agree to this many decimals share a column, a line or a mark."""


@dataclass(frozen=True)
class Weighed:
    """The responses of all steps that have a gradient, with their weights; (N,) each.

    Attributes:
        right: bool, whether the answer is right.
        weights: variant → the weight of a token of each response, from `weights.relative`.
    """

    lengths: Tensor
    right: Tensor
    weights: dict[str, Tensor]


@dataclass(frozen=True)
class Cell:
    """Responses of a range of lengths, and each variant's mean weights; None where there is no response.

    Attributes:
        right: whether the cell has the right or the wrong responses; None: both.
        weight: mean of |w| over the tokens; 1 is the average token of all cells.
        signed_weight: mean of w over the tokens; below 0, the update makes the tokens less likely.
        share: share of the gradient, Σ|w| here over Σ|w| everywhere.
    """

    shortest: int
    longest: int
    right: bool | None
    responses: int
    tokens: int
    weight: dict[str, float | None]
    signed_weight: dict[str, float | None]
    share: dict[str, float]

    @property
    def lengths(self) -> str:
        """The range of lengths, as text for a table."""
        return f"{self.shortest}" if self.shortest == self.longest else f"{self.shortest}–{self.longest}"

    @property
    def mean_length(self) -> float:
        """Tokens per response; the cell must have one."""
        return self.tokens / self.responses


@dataclass(frozen=True)
class Cells:
    """The same responses, grouped in three ways.

    Attributes:
        by_answer: the right ones, then the wrong ones.
        by_both: for each length the right ones, then the wrong ones.
    """

    by_length: list[Cell]
    by_answer: list[Cell]
    by_both: list[Cell]


def cells_of(weighed: Weighed) -> Cells:
    """Group responses by length into at most `MOST_BINS` bins of similar size; equal lengths share a bin."""
    upper = upper_edges(weighed.lengths)
    bins = torch.bucketize(weighed.lengths, upper)
    inside = [bins == number for number in range(len(upper))]
    everywhere = torch.ones_like(weighed.right)
    return Cells(
        by_length=[_cell(weighed, chosen, None) for chosen in inside],
        by_answer=[_cell(weighed, everywhere, right) for right in (True, False)],
        by_both=[_cell(weighed, chosen, right) for chosen in inside for right in (True, False)],
    )


def alike(cells: list[Cell]) -> list[list[str]]:
    """Group the variants that weight these responses equally."""
    groups: dict[tuple[float, ...], list[str]] = {}
    for name in cells[0].share:
        key = tuple(round(cell.weight[name] or 0.0, _ALIKE) for cell in cells)
        groups.setdefault(key, []).append(name)
    return list(groups.values())


def upper_edges(lengths: Tensor) -> Tensor:
    """Return the longest length in each bin, in rising order: (N,) → (≤ `MOST_BINS`,)."""
    quantiles = np.arange(1, MOST_BINS + 1) / MOST_BINS
    return torch.from_numpy(np.unique(np.quantile(lengths.numpy(), quantiles, method="inverted_cdf")))


def _cell(weighed: Weighed, chosen: Tensor, right: bool | None) -> Cell:
    lengths = weighed.lengths[chosen]
    here = chosen if right is None else chosen & (weighed.right == right)
    tokens = int(weighed.lengths[here].sum())

    def per_token(weights: Tensor) -> float | None:
        return float((weights * weighed.lengths)[here].sum()) / tokens if tokens else None

    def share(weights: Tensor) -> float:
        mass = weights.abs() * weighed.lengths
        return float(mass[here].sum() / mass.sum())

    weights = {name: values.double() for name, values in weighed.weights.items()}
    return Cell(
        shortest=int(lengths.min()),
        longest=int(lengths.max()),
        right=right,
        responses=int(here.sum()),
        tokens=tokens,
        weight={name: per_token(values.abs()) for name, values in weights.items()},
        signed_weight={name: per_token(values) for name, values in weights.items()},
        share={name: share(values) for name, values in weights.items()},
    )
