"""The mini-batch that every framework gets, and the ways in which it is cut. Imports numpy alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Rows = list[int]

LENGTHS = (2, 29, 7, 18, 11, 5, 23, 14, 3, 26, 9, 16, 20, 12, 8, 25)
TOOL_TOKENS = slice(9, 13)
"""Tokens of response 1 that a tool wrote: 228 − 4 = 224 tokens count."""
GROUP_SIZE = 4
MAX_RESPONSE_LENGTH = 32
MASKED_ROW = 13
"""The response of 12 tokens that the second batch masks out as a whole."""
TOKEN_BUDGET = 2 * MAX_RESPONSE_LENGTH

REWARDS: Floats = np.array(
    [
        [[1, 0.8], [0, 0.4], [0, 0.0], [0, 0.8]],
        [[1, 0.2], [1, 0.2], [0, 0.6], [0, 0.8]],
        [[0, 0.4], [1, 0.4], [1, 0.4], [1, 0.4]],
        [[0, 0.0], [0, 0.8], [0, 0.8], [0, 0.2]],
    ]
).reshape(-1, 2)
"""Right or wrong, and a second reward, of each response; one group has no spread of the first, one none of
the second. Estimators of one reward get the first."""


@dataclass(frozen=True)
class Batch:
    """B responses, padded to the longest; all (B, T), float64.

    Attributes:
        log_prob: of the current policy, nats; as are ``old_log_prob`` and ``ref_log_prob``.
        advantages: one value per response, repeated on its tokens and 0 elsewhere.
        mask: 1 on tokens that the policy wrote and that count.
        present: 1 on all tokens of a response, also a tool's.
    """

    log_prob: Floats
    old_log_prob: Floats
    ref_log_prob: Floats
    advantages: Floats
    mask: Floats
    present: Floats

    def __len__(self) -> int:
        return len(self.mask)

    @property
    def lengths(self) -> list[int]:
        """Tokens of each response, a tool's included."""
        return [int(row.sum()) for row in self.present]

    def select(self, rows: Rows, *, trim: bool = False) -> Batch:
        """Return some responses; with ``trim``, padded to the longest of them."""
        width = max(self.lengths[row] for row in rows) if trim else self.mask.shape[1]
        return Batch(**{field.name: getattr(self, field.name)[rows, :width] for field in fields(self)})

    def save(self, path: Path) -> None:
        """Write to an ``.npz`` file."""
        np.savez(path, **{field.name: getattr(self, field.name) for field in fields(self)})

    @classmethod
    def load(cls, path: Path) -> Batch:
        """Read what `save` wrote."""
        with np.load(path) as arrays:
            return cls(**{field.name: arrays[field.name] for field in fields(cls)})


def ragged_batch(seed: int = 0) -> Batch:
    """Draw 16 responses of 2 to 29 tokens in four groups, ratios inside and outside of the clip ranges.

    Log-probs lie around −2, so that all are below 0: DPPO reads the probabilities themselves.
    """
    random = np.random.default_rng(seed)
    shape = (len(LENGTHS), max(LENGTHS))
    present = (np.arange(shape[1]) < np.array(LENGTHS)[:, None]).astype(float)
    mask = present.copy()
    mask[1, TOOL_TOKENS] = 0
    log_prob = (-2 + 0.5 * random.standard_normal(shape)) * present
    rewards = random.standard_normal((len(LENGTHS) // GROUP_SIZE, GROUP_SIZE))
    centred = (rewards - rewards.mean(1, keepdims=True)) / rewards.std(1, ddof=1, keepdims=True)
    return Batch(
        log_prob=log_prob,
        old_log_prob=log_prob + 0.3 * random.standard_normal(shape) * present,
        ref_log_prob=log_prob + 0.3 * random.standard_normal(shape) * present,
        advantages=centred.reshape(-1, 1) * mask,
        mask=mask,
        present=present,
    )


def batches() -> dict[str, Batch]:
    """Return the batch, the same with a response masked out, and with advantages 0, which leaves the KL."""
    ragged = ragged_batch()
    kept = np.ones((len(ragged), 1))
    kept[MASKED_ROW] = 0
    return {
        "ragged": ragged,
        "masked": replace(ragged, mask=ragged.mask * kept, advantages=ragged.advantages * kept),
        "kl": replace(ragged, advantages=0 * ragged.advantages),
    }


def whole(rows: Rows, lengths: list[int]) -> list[Rows]:  # noqa: ARG001  # all cuts have one signature
    """Cut into one micro-batch."""
    return [rows]


def halves(rows: Rows, lengths: list[int]) -> list[Rows]:  # noqa: ARG001
    """Cut into two micro-batches of equally many responses."""
    return [rows[: len(rows) // 2], rows[len(rows) // 2 :]]


def singles(rows: Rows, lengths: list[int]) -> list[Rows]:  # noqa: ARG001
    """Cut into micro-batches of one response each."""
    return [[row] for row in rows]


def tokens(rows: Rows, lengths: list[int]) -> list[Rows]:
    """Cut by `TOKEN_BUDGET` tokens: longest first, each into the first micro-batch where it fits."""
    parts: list[Rows] = []
    for row in sorted(rows, key=lambda row: -lengths[row]):
        fitting = [part for part in parts if sum(lengths[r] for r in part) + lengths[row] <= TOKEN_BUDGET]
        if fitting:
            fitting[0].append(row)
        else:
            parts.append([row])
    return parts


CUTS: dict[str, Callable[[Rows, list[int]], list[Rows]]] = {
    cut.__name__: cut for cut in (whole, halves, singles, tokens)
}
"""Name → function that cuts a rank's rows into micro-batches, given the length of every row."""
EQUAL_CUTS = ("whole", "halves", "singles")


def rank_rows(num_rows: int, rank: int, world_size: int) -> Rows:
    """Return a rank's share: consecutive rows, equally many on each rank."""
    share = num_rows // world_size
    return list(range(rank * share, (rank + 1) * share))
