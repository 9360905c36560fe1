"""Test where GVPO's mean log-ratio comes from, and that the rows of a prompt are together there."""

from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.workers.engine.utils import prepare_micro_batches

from grpo_verl_ext.verl_plugin import compose
from grpo_verl_ext.verl_plugin.mini_batch.plan import Cut, Plan, policy_moves
from grpo_verl_ext.verl_plugin.wire import StatisticSource

ACTOR, V1 = "actor_rollout_ref.actor", "trainer.v1"
MICRO_BATCH, RANKS, FORWARD_PASS = (
    StatisticSource.MICRO_BATCH,
    StatisticSource.RANKS,
    StatisticSource.FORWARD_PASS,
)

# 8 prompts × 4 responses in a mini-batch, on 4 ranks of 8 rows.
FIXED = Cut(engine="fsdp2", ranks=4, group_size=4, mini_batch=32, micro_batch=4, budget=16384, longest=1024)
DYNAMIC = replace(FIXED, micro_batch=None)


@pytest.mark.parametrize(
    ("cut", "source", "unit", "reason"),
    [
        (FIXED, MICRO_BATCH, 4, "=4 holds all 4 responses to a prompt"),
        (replace(FIXED, micro_batch=8), MICRO_BATCH, 4, "=8 holds all 4"),
        (replace(FIXED, ranks=1), MICRO_BATCH, 4, "=4 holds all 4"),
        # Four ranks × 1 row are one prompt, × 2 rows two.
        (replace(FIXED, micro_batch=1), RANKS, 4, "=1 on 4 ranks hold the 4 responses to a prompt"),
        (replace(FIXED, micro_batch=2), RANKS, 8, "=2 on 4 ranks"),
        # 2 × 6 rows are three prompts, of which no rank has a whole number.
        (replace(FIXED, ranks=2, mini_batch=48, micro_batch=6), RANKS, 12, "=6 on 2 ranks"),
        (replace(FIXED, ranks=2, micro_batch=1), FORWARD_PASS, 32, "=1 nor 2 ranks × 1 is a multiple of 4"),
        (replace(FIXED, ranks=1, micro_batch=2), FORWARD_PASS, 32, "=2 nor 1 ranks × 2"),
        # What verl itself refuses is not planned for.
        (replace(FIXED, micro_batch=3), FORWARD_PASS, 32, "=3 does not divide"),
        (replace(FIXED, micro_batch=0), FORWARD_PASS, 32, "=0 does not divide"),
        (replace(FIXED, micro_batch=16), FORWARD_PASS, 32, "=16 does not divide"),
        (replace(FIXED, ranks=3), FORWARD_PASS, 32, "3 ranks do not divide the 32 rows"),
        (DYNAMIC, MICRO_BATCH, 4, "have up to 4096 tokens and fit"),
        (replace(DYNAMIC, budget=4096), MICRO_BATCH, 4, "have up to 4096 tokens and fit"),
        (replace(DYNAMIC, budget=4095), FORWARD_PASS, 32, "4096 tokens, a micro-batch 4095"),
        # Six prompts are 1.5 on each rank.
        (replace(DYNAMIC, mini_batch=24), FORWARD_PASS, 24, "4 ranks do not divide a mini-batch's 6 times"),
        *(
            (replace(cut, engine="megatron"), FORWARD_PASS, 32, "strategy=megatron was not tested")
            for cut in (FIXED, DYNAMIC)
        ),
    ],
)
def test_the_plan(cut: Cut, source: StatisticSource, unit: int, reason: str) -> None:
    plan = cut.plan()
    assert (plan.source, plan.unit) == (source, unit)
    assert reason in plan.reason
    assert plan.units_per_micro_batch == (2 if "=8 holds" in reason else 1)
    assert (plan.longest is not None) == (source is MICRO_BATCH and cut.micro_batch is None)


@pytest.mark.parametrize(
    ("cut", "largest_group", "longest", "misfit"),
    [
        (DYNAMIC, 4, 1024, ""),
        (DYNAMIC, 5, 1024, "a prompt has 5 responses, more than 4"),
        (DYNAMIC, 4, 1025, "have 1025 tokens, more than 1024"),
        (FIXED, 4, 9999, ""),
        (FIXED, 5, 1, "a prompt has 5 responses, more than 4"),
        (replace(FIXED, micro_batch=2), 8, 1, ""),
        (replace(FIXED, micro_batch=2), 9, 1, "a prompt has 9 responses, more than 8"),
        (replace(DYNAMIC, budget=1), 9, 9999, ""),
    ],
)
def test_a_batch_that_does_not_fit_its_plan(cut: Cut, largest_group: int, longest: int, misfit: str) -> None:
    found = cut.plan().misfit(largest_group, longest)
    assert misfit in found
    assert bool(misfit) == bool(found)


def composed(*overrides: str) -> DictConfig:
    return compose.composed(["+algo=gvpo", "actor_rollout_ref.rollout.name=vllm", *overrides])


SIZES = (
    *(f"{ACTOR}.ppo_mini_batch_size=8", "actor_rollout_ref.rollout.n=4", f"{ACTOR}.strategy=fsdp2"),
    *("data.max_prompt_length=24", "data.max_response_length=1000"),
)


def test_the_cut_is_read_from_verls_configuration() -> None:
    fixed = composed(*SIZES, f"{ACTOR}.ppo_micro_batch_size_per_gpu=4")
    assert Cut.from_config(fixed, ranks=4, of_prompts=True) == FIXED
    dynamic = (f"{ACTOR}.use_dynamic_bsz=true", f"{ACTOR}.ppo_max_token_len_per_gpu=8192")
    parallel = composed(*SIZES, *dynamic, f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size=2")
    # Two ranks share a micro-batch's tokens.
    assert Cut.from_config(parallel, ranks=4, of_prompts=True) == DYNAMIC
    short = composed(*SIZES, "data.max_response_length=1")
    assert Cut.from_config(short, ranks=4, of_prompts=True).longest == 128, "a row of verl's padding"


@pytest.mark.parametrize(
    ("overrides", "moves"),
    [
        ([], False),
        ([f"{ACTOR}.ppo_mini_batch_size=4"], True),
        ([f"{ACTOR}.ppo_epochs=2"], True),
        (["algorithm.rollout_correction.bypass_mode=true"], True),
        ([f"{V1}.trainer_mode=grpo_ext_separate_async", f"{V1}.separate_async.parameter_sync_step=2"], True),
    ],
)
def test_when_the_policy_moves_between_the_rollout_and_an_update(overrides: list[str], moves: bool) -> None:
    assert policy_moves(composed(*SIZES, "data.train_batch_size=8", *overrides)) is moves


def laid_out(plan: Plan, cut: Cut, prompts: list[int], lengths: list[int]) -> tuple[list[list[int]], int]:
    """The rows of each rank in the trainer's order, and how many there are; the last ones are padding."""
    units = plan.whole_groups(prompts)
    size = -(-len(units) * plan.unit // cut.mini_batch) * cut.mini_batch
    return plan.over_ranks(units, lengths + [1] * (size - len(prompts)), cut.ranks, cut.mini_batch), size


def micro_batches(rows: list[int], lengths: list[int], plan: Plan, cut: Cut) -> list[list[int]]:
    """verl's own cut of a rank's rows of a mini-batch."""
    tokens = [torch.zeros(lengths[row], dtype=torch.int64) for row in rows]
    data = TensorDict(
        {"input_ids": torch.nested.as_nested_tensor(tokens, layout=torch.jagged), "row": torch.tensor(rows)},
        batch_size=len(rows),
    )
    told: dict[str, Any] = {"use_dynamic_bsz": cut.micro_batch is None, "max_token_len_per_gpu": cut.budget}
    if plan.longest is not None:
        told["force_group_size"] = plan.unit
    tu.assign_non_tensor(data, micro_batch_size_per_gpu=cut.micro_batch, **told)
    return [each["row"].tolist() for each in prepare_micro_batches(data)[0]]


@given(data=st.data())
@settings(derandomize=True, deadline=None, max_examples=100)
def test_whole_groups_meet_where_the_plan_says(data: st.DataObject) -> None:
    k, ranks = data.draw(st.integers(2, 4)), data.draw(st.sampled_from([1, 2, 4]))
    micro_batch = data.draw(st.sampled_from([None, 1, 2, k, 2 * k]))
    cut = Cut("fsdp2", ranks, k, ranks * 2 * (micro_batch or k) * k, micro_batch, budget=k * 9, longest=9)
    plan = cut.plan()
    sizes = data.draw(st.lists(st.integers(1, k), min_size=1, max_size=3 * cut.mini_batch // k))
    prompts = data.draw(st.permutations([i for i, size in enumerate(sizes) for _ in range(size)]))
    lengths = data.draw(st.lists(st.integers(1, 9), min_size=len(prompts), max_size=len(prompts)))
    by_rank, size = laid_out(plan, cut, prompts, lengths)
    assert sorted(row for rank in by_rank for row in rank) == list(range(size))

    places: dict[int, set[Any]] = defaultdict(set)
    share = cut.mini_batch // ranks
    for rank, rows in enumerate(by_rank):
        for start in range(0, len(rows), share):
            own = rows[start : start + share]
            cuts = micro_batches(own, lengths + [1] * (size - len(prompts)), plan, cut)
            for number, micro in enumerate([own] if plan.source is FORWARD_PASS else cuts):
                place = (start, number) if plan.source is not MICRO_BATCH else (rank, start, number)
                for row in micro:
                    if row < len(prompts):
                        places[prompts[row]].add(place)
    assert all(len(found) == 1 for found in places.values())
    assert len(places) == len(sizes)
