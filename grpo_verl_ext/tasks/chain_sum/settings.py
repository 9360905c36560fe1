"""What decides a prepared folder besides its seed, and the lengths that everything on it must fit."""

from __future__ import annotations

from dataclasses import dataclass

DATA_SOURCE = "chain_sum"
"""verl's ``data_source`` of every row, and so the middle of its validation metrics' names."""

MAX_PROMPT_TOKENS = 24
"""Longest prompt in tokens, chat template included: 19 with five terms."""

MAX_RESPONSE_TOKENS = 44
"""Longest wanted response in tokens, end of turn included: 38 with five terms; and room for six more."""


@dataclass(frozen=True)
class Settings:
    """Sizes of the data and the model, and the course of the warm start.

    Every problem has ``min_terms`` to ``max_terms`` terms, each length equally often.
    """

    min_terms: int = 3
    max_terms: int = 5
    train_problems: int = 2048
    test_problems: int = 512

    width: int = 128
    layers: int = 3
    heads: int = 4
    feed_forward: int = 256

    steps: int = 480
    """Optimizer steps of the warm start."""
    slip_steps: int = 100
    """How many of them, the last ones, are on responses with slips."""
    slip_share: float = 0.32
    """Probability that an addition in such a response is wrong on purpose."""
    batch_size: int = 24
    learning_rate: float = 2.2e-3
    workers: int = 2
    """Threads that share each batch: a part of the settings because the weights depend on it."""
