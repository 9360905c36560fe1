"""The vocabulary in which an adapter describes its framework. Imports nothing of any framework."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from benchmarks.conformance.batch import GROUP_SIZE, MAX_RESPONSE_LENGTH, Batch, Rows


@dataclass(frozen=True)
class Row:
    """One line of the table: an algorithm under some settings of the framework.

    Attributes:
        algorithm: a key of `oracle.ALGORITHMS`.
        settings: as a user of the framework would write them.
        options: what the adapter passes on.
        note: where upstream says so, or what differs.
        control: must depend on the cut; a command in which it does not has failed.
        bug: ``owner/name#number`` of a known bug. A control must show it, any other row must not.
    """

    algorithm: str
    settings: str
    options: dict[str, Any] = field(default_factory=dict)
    note: str = ""
    control: bool = False
    bug: str = ""


@dataclass(frozen=True)
class StandIn:
    """A line of the framework that the adapter does not call, and ours in its place.

    Attributes:
        file: below the framework's site-packages or checkout.
        line: its text; its number is looked up there (the last, of several), and a text that is gone is
        drift. ours: what the adapter or the harness does instead.
    """

    file: str
    line: str
    ours: str
    after: str = ""


@dataclass(frozen=True)
class Task:
    """What a framework is asked for: a gradient of its own loss for one rank's micro-batches.

    Attributes:
        row: the settings.
        batch: the mini-batch over all ranks; frameworks that normalise in the driver see it.
        micro_batches: rows of this rank, in the order of its micro-batches.
        clip_low: ε_low, ``clip_high``: ε_high of the algorithm.
        kl_coef: β of the k3 term; 0 for none.
    """

    row: Row
    batch: Batch
    micro_batches: list[Rows]
    rank: int
    world_size: int
    clip_low: float
    clip_high: float
    kl_coef: float
    group_size: int = GROUP_SIZE
    max_response_length: int = MAX_RESPONSE_LENGTH
