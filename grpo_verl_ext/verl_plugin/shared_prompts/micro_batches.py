"""Cut a mini-batch by the tokens that are fed: rows of a prompt together, their prompt counted once."""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_name
from verl.utils.seqlen_balancing import get_seqlen_balanced_partitions

from grpo_verl_ext.verl_plugin.shared_prompts.layout import Fed, count_fed, fed_rows


def cut(data: Any, group: Any) -> tuple[list[Any], list[list[int]]]:
    """Return a rank's micro-batches and the rows of each, as verl does with dynamic batching.

    Each has at most ``max_token_len_per_gpu`` fed tokens, and all ranks get the same number. The rows of a
    prompt stay together, unless they are too many, or another rank has too few prompts. Those that
    ``force_group_size`` binds always do.
    """
    fed = fed_rows(data["prompts"], data["responses"])
    budget, bound = int(data["max_token_len_per_gpu"]), tu.get(data, key="force_group_size", default=1)
    blocks = [list(range(start, start + bound)) for start in range(0, len(fed), bound)]
    for units in (by_prompt(fed, blocks, budget), blocks):
        costs = [count_fed(fed[row] for row in unit) for unit in units]
        least, most = largest_over_ranks([math.ceil(sum(costs) / budget), -len(units)], group)
        for number in range(least, 1 - most):
            parts = get_seqlen_balanced_partitions(costs, k_partitions=number, equal_size=False)
            heaviest = max(sum(costs[unit] for unit in part) for part in parts)
            if largest_over_ranks([heaviest], group)[0] <= budget:
                rows = [sorted(row for unit in part for row in units[unit]) for part in parts]
                return [tu.index_select_tensor_dict(data, each) for each in rows], rows
    raise ValueError(
        f"rows that must stay together have more than the {budget} tokens of a micro-batch. Type: "
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=<more>"
    )


def by_prompt(fed: Sequence[Fed], blocks: Sequence[list[int]], budget: int) -> list[list[int]]:
    """Return the rows in units of blocks that begin with the same prompt, of at most so many fed tokens."""
    units: list[list[int]] = []
    with_room: dict[bytes, list[int]] = {}
    for block in blocks:
        unit = with_room.get(fed[block[0]][0])
        if unit is None or count_fed(fed[row] for row in (*unit, *block)) > budget:
            unit = with_room[fed[block[0]][0]] = []
            units.append(unit)
        unit.extend(block)
    return units


def largest_over_ranks(numbers: list[int], group: Any) -> list[int]:
    """Return the largest of each number over the ranks."""
    found = torch.tensor(numbers, device=get_device_name())
    dist.all_reduce(found, op=dist.ReduceOp.MAX, group=group)
    return [int(each) for each in found.tolist()]
