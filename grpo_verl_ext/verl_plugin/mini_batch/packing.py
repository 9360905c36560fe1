"""Assign responses to optimizer steps and ranks: whole groups, balanced by length.

verl cuts a rollout batch into one equal contiguous share per rank, and each share into equal contiguous
mini-batches. The order of the rows therefore determines the assignment.
"""

from collections.abc import Hashable, Sequence
from itertools import islice

from verl.utils.seqlen_balancing import get_seqlen_balanced_partitions

_Rows = list[int]


def whole_groups(group_of_row: Sequence[Hashable], capacity: int) -> list[_Rows]:
    """Fill mini-batches of ``capacity`` rows with whole groups, each into the first where it fits.

    Groups are taken in the order of their first row. Groups of equal size keep that order; smaller ones, with
    failed sessions, fill gaps.

    Raises:
        ValueError: a group has more rows than a mini-batch.
    """
    groups: dict[Hashable, _Rows] = {}
    for row, group in enumerate(group_of_row):
        groups.setdefault(group, []).append(row)
    smallest = min(map(len, groups.values()), default=0)
    mini_batches: list[_Rows] = []
    with_room: list[_Rows] = []  # searching only these keeps equal groups linear in time
    for group, rows in groups.items():
        if len(rows) > capacity:
            raise ValueError(
                f"prompt {group} has {len(rows)} rows, more than the {capacity} of a mini-batch, which must "
                f"hold whole groups. Type: actor_rollout_ref.actor.ppo_mini_batch_size=<more prompts>"
            )
        place = next((i for i, m in enumerate(with_room) if len(m) + len(rows) <= capacity), None)
        if place is None:
            place = len(with_room)
            with_room.append([])
            mini_batches.append(with_room[place])
        with_room[place].extend(rows)
        if len(with_room[place]) + smallest > capacity:
            del with_room[place]
    return mini_batches


def filled(mini_batches: Sequence[_Rows], padding: Sequence[int], capacity: int) -> list[_Rows]:
    """Fill every mini-batch up to ``capacity`` with padding rows; the rest form further mini-batches."""
    unused = iter(padding)
    full = [[*rows, *islice(unused, capacity - len(rows))] for rows in mini_batches]
    left = list(unused)
    return full + [left[start : start + capacity] for start in range(0, len(left), capacity)]


def balanced_over_ranks(mini_batches: Sequence[_Rows], workload: Sequence[int], dp_size: int) -> list[_Rows]:
    """Split every mini-batch into ``dp_size`` parts of equally many rows and about equal workload.

    The heaviest part of a mini-batch goes to the rank with the least workload.

    Returns:
        For each rank its rows, one mini-batch after the other.
    """
    ranks: list[_Rows] = [[] for _ in range(dp_size)]
    load = [0] * dp_size
    for rows in mini_batches:
        own = [workload[row] for row in rows]
        parts = get_seqlen_balanced_partitions(own, k_partitions=dp_size, equal_size=True)
        heaviest_first = sorted(parts, key=lambda part: -sum(own[i] for i in part))
        lightest_first = sorted(range(dp_size), key=lambda rank: load[rank])
        for rank, part in zip(lightest_first, heaviest_first, strict=True):
            ranks[rank].extend(rows[i] for i in part)
            load[rank] += sum(own[i] for i in part)
    return ranks


def blocks_over_ranks(
    blocks: Sequence[_Rows], workload: Sequence[int], dp_size: int, per_mini_batch: int, per_micro_batch: int
) -> list[_Rows]:
    """Do the same with blocks of rows, each of which stays together on one rank.

    Ranks run their micro-batches in step, so those of a mini-batch come in the order of their workload.

    Args:
        blocks: all rows, cut into blocks of equal size.
        workload: of each row.
        dp_size: number of ranks.
        per_mini_batch: blocks of a mini-batch on all ranks.
        per_micro_batch: blocks of a micro-batch on one rank.
    """
    work = [sum(workload[row] for row in block) for block in blocks]
    every = range(len(blocks))
    mini_batches = [list(every[start : start + per_mini_batch]) for start in every[::per_mini_batch]]

    def heaviest_first(own: _Rows) -> _Rows:
        micro_batches = [own[i : i + per_micro_batch] for i in range(0, len(own), per_micro_batch)]
        micro_batches.sort(key=lambda numbers: -sum(work[number] for number in numbers))
        return [number for numbers in micro_batches for number in numbers]

    share = per_mini_batch // dp_size
    return [
        [
            row
            for start in range(0, len(rank), share)
            for number in heaviest_first(rank[start : start + share])
            for row in blocks[number]
        ]
        for rank in balanced_over_ranks(mini_batches, work, dp_size)
    ]
