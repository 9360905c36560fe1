"""Test that mini-batches have whole groups and rows are balanced over ranks."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from verl.utils.seqlen_balancing import calculate_workload, get_seqlen_balanced_partitions

from grpo_verl_ext.verl_plugin.mini_batch.plan import Plan
from grpo_verl_ext.verl_plugin.wire import StatisticSource


def in_blocks(
    blocks: list[list[int]], workload: list[int], dp_size: int, per_mini_batch: int, per_micro_batch: int
) -> list[list[int]]:
    """The rows of each rank, where each block stays on one rank."""
    plan = Plan(StatisticSource.MICRO_BATCH, len(blocks[0]), "", units_per_micro_batch=per_micro_batch)
    return plan.over_ranks(blocks, workload, dp_size, per_mini_batch * len(blocks[0]))


def test_a_group_that_no_mini_batch_holds_is_refused():
    with pytest.raises(ValueError, match=r"prompt a has 3 rows, more than the 2 .*ppo_mini_batch_size="):
        Plan(StatisticSource.FORWARD_PASS, 2, "").whole_groups(["a", "a", "a"])


def first_fit(sizes: list[int], capacity: int) -> list[list[int]]:
    """Numbers of the groups in each mini-batch, by looking at every mini-batch for every group."""
    mini_batches: list[list[int]] = []
    for group, size in enumerate(sizes):
        for own in mini_batches:
            if sum(sizes[other] for other in own) + size <= capacity:
                own.append(group)
                break
        else:
            mini_batches.append([group])
    return mini_batches


@given(sizes=st.lists(st.integers(1, 8), max_size=30), capacity=st.integers(8, 20))
@settings(derandomize=True, deadline=None, max_examples=200)
def test_each_group_goes_into_the_first_mini_batch_that_has_room(sizes, capacity):
    prompts = [i for i, size in enumerate(sizes) for _ in range(size)]
    found = Plan(StatisticSource.FORWARD_PASS, capacity, "").whole_groups(prompts)
    groups = [list(dict.fromkeys(prompts[row] for row in rows)) for rows in found]
    assert groups == first_fit(sizes, capacity)


def test_padding_fills_up_and_the_rest_stands_alone():
    (rows,) = Plan(StatisticSource.FORWARD_PASS, 4, "").over_ranks([[0, 1, 2], [3]], [1] * 12, 1, 4)
    assert [sorted(rows[i : i + 4]) for i in (0, 4, 8)] == [[0, 1, 2, 4], [3, 5, 6, 7], [8, 9, 10, 11]]


def test_blocks_by_hand():
    # Workloads 2, 9, 4, 6: 9 + 2 and 6 + 4 are the most equal halves, and the heavier one goes to the first.
    blocks, workload = [[0, 1], [2, 3], [4, 5], [6, 7]], [1, 1, 4, 5, 2, 2, 3, 3]
    assert in_blocks(blocks, workload, 2, per_mini_batch=4, per_micro_batch=1) == [[2, 3, 0, 1], [6, 7, 4, 5]]
    # Two mini-batches: of blocks 0 and 1, then of 2 and 3, whose heavier one goes to the less busy rank.
    assert in_blocks(blocks, workload, 2, per_mini_batch=2, per_micro_batch=1) == [[2, 3, 4, 5], [0, 1, 6, 7]]
    # One rank with two micro-batches of two blocks: the heavier pair comes first.
    workload = [1, 1, 1, 1, 5, 5, 0, 0]
    assert in_blocks(blocks, workload, 1, per_mini_batch=4, per_micro_batch=2) == [[4, 5, 6, 7, 0, 1, 2, 3]]


def most_tokens(ranks: list[list[int]], lengths: torch.Tensor) -> int:
    return max(int(lengths[rank].sum()) for rank in ranks)


def waits(ranks: list[list[int]], lengths: torch.Tensor, rows: int) -> int:
    """Tokens of the busiest rank, summed over parts of ``rows`` rows, after which ranks wait."""
    starts = range(0, len(ranks[0]), rows)
    return sum(max(int(lengths[rank[i : i + rows]].sum()) for rank in ranks) for i in starts)


@pytest.mark.parametrize("dp_size", [2, 4, 8])
@pytest.mark.parametrize("seed", range(5))
def test_on_a_long_tail_no_rank_is_much_busier_and_none_waits_longer_than_under_verl(dp_size, seed):
    # Lengths of 1,024 rows, log-normal and cut at 4,096 tokens, and verl's measure of their work.
    generator = torch.Generator().manual_seed(seed)
    lengths = (torch.randn(1024, generator=generator) * 1.0 + 6).exp().clamp(16, 4096).long()
    workload = calculate_workload(lengths).tolist()
    # 128 prompts × 8 responses in mini-batches of 32 prompts; where groups stay on a rank, each micro-batch
    # has the responses to a prompt.
    verls = get_seqlen_balanced_partitions(workload, dp_size, equal_size=True)
    anywhere, together = (Plan(StatisticSource.FORWARD_PASS, size, "") for size in (256, 8))
    mini_batches, blocks = (
        plan.whole_groups([row % 128 for row in range(1024)]) for plan in (anywhere, together)
    )
    whole = in_blocks(blocks, workload, dp_size, per_mini_batch=32, per_micro_batch=1)
    for ours in (anywhere.over_ranks(mini_batches, workload, dp_size, len(mini_batches[0])), whole):
        assert most_tokens(ours, lengths) <= 1.05 * most_tokens(verls, lengths)
    for rows in (8, 256 // dp_size):  # of a micro-batch, of a mini-batch
        assert waits(whole, lengths, rows) < waits(verls, lengths, rows)
