"""Means of the weights over responses of similar length, right and wrong."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

MOST_BINS = 5


@dataclass(frozen=True)
class Weighed:
    """The responses of all steps that have a gradient; (N,) each."""

    lengths: Tensor
    right: Tensor
    """Bool."""
    weights: dict[str, Tensor]
    """Variant → the weight of a token of each response, from `weights.relative`."""


@dataclass(frozen=True)
class Cell:
    """Responses of some lengths, and what each variant gives them; None where there is no response."""

    shortest: int
    longest: int
    right: bool | None
    """None: right and wrong ones."""
    responses: int
    tokens: int
    weight: dict[str, float | None]
    """Mean of |w| over the tokens; 1 is the average token of all cells."""
    signed_weight: dict[str, float | None]
    """Mean of w over the tokens: below 0, they are made less likely."""
    share: dict[str, float]
    """Share of the gradient, Σ|w| here over Σ|w| everywhere."""

    @property
    def lengths(self) -> str:
        """For a table."""
        return f"{self.shortest}" if self.shortest == self.longest else f"{self.shortest}–{self.longest}"

    @property
    def mean_length(self) -> float:
        """Tokens per response, of a cell that has one."""
        return self.tokens / self.responses


@dataclass(frozen=True)
class Cells:
    """The same responses, cut in three ways."""

    by_length: list[Cell]
    by_answer: list[Cell]
    """The right ones, then the wrong ones."""
    by_both: list[Cell]
    """For each length the right ones, then the wrong ones."""


def cells_of(weighed: Weighed) -> Cells:
    """Bins of about equally many responses, at most `MOST_BINS`; equal lengths are in one bin."""
    upper = upper_edges(weighed.lengths)
    bins = torch.bucketize(weighed.lengths, upper)
    inside = [bins == number for number in range(len(upper))]
    everywhere = torch.ones_like(weighed.right)
    return Cells(
        by_length=[_cell(weighed, chosen, None) for chosen in inside],
        by_answer=[_cell(weighed, everywhere, right) for right in (True, False)],
        by_both=[_cell(weighed, chosen, right) for chosen in inside for right in (True, False)],
    )


def upper_edges(lengths: Tensor) -> Tensor:
    """The longest length of each bin, rising; each of them is one of the lengths: (N,) → (≤ `MOST_BINS`,)."""
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
