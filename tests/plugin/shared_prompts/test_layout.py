"""Test that each response token is predicted from its prompt and the tokens before it, and nothing else."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, modeling_flash_attention_utils

from grpo_verl_ext.verl_plugin.shared_prompts.attention import ATTENTION
from grpo_verl_ext.verl_plugin.shared_prompts.layout import Layout, by_prompt, count_fed, fed_rows, layout_of

Rows = list[tuple[list[int], list[int]]]
tokens = st.integers(0, 1)
rows_strategy = st.lists(
    st.tuples(st.lists(tokens, min_size=1, max_size=3), st.lists(tokens, max_size=5)), min_size=1, max_size=8
)
"""Prompts and responses of two words, so that many are equal."""


def nested(lists: list[list[int]]) -> Tensor:
    return torch.nested.nested_tensor(
        [torch.tensor(each, dtype=torch.int64) for each in lists], layout=torch.jagged
    )


def layout_and_ids(rows: Rows) -> tuple[Layout, Tensor]:
    prompts, responses = (nested([row[part] for row in rows]) for part in (0, 1))
    return layout_of(prompts, responses), torch.tensor(
        [token for row in rows for part in row for token in part]
    )


def read_of_segments(layout: Layout) -> dict[int, list[int]]:
    """Fed token → the fed tokens that it attends to."""
    return {
        segment.start + i: [
            *range(segment.prefix_start, segment.prefix_start + segment.prefix_length),
            *range(segment.start, segment.start + i + 1),
        ]
        for segment in layout.segments
        for i in range(segment.length)
    }


@given(rows_strategy)
def test_a_token_is_predicted_by_what_its_row_has_before_it(rows: Rows) -> None:
    layout, ids = layout_and_ids(rows)
    fed, attended = ids[layout.source], read_of_segments(layout)
    at = iter(zip(layout.token.tolist(), layout.kept[layout.logits_of].tolist(), strict=True))
    start = 0
    for prompt, response in rows:
        for i in range(len(response)):
            token, read = next(at)
            assert token == start + len(prompt) + i
            assert fed[attended[read]].tolist() == [*prompt, *response[:i]]
        start += len(prompt) + len(response)
    assert next(at, None) is None


@given(rows_strategy)
def test_a_prompt_and_each_different_response_but_its_last_token_are_fed_once(rows: Rows) -> None:
    layout, _ = layout_and_ids(rows)
    prompts = {tuple(prompt) for prompt, _ in rows}
    responses = {(tuple(prompt), tuple(response[:-1])) for prompt, response in rows}
    expected = sum(map(len, prompts)) + sum(len(response) for _, response in responses)
    assert len(layout.source) == expected
    assert sorted(read_of_segments(layout)) == list(range(expected)), "each is in one segment"
    assert count_fed(fed_rows(nested([r[0] for r in rows]), nested([r[1] for r in rows]))) == expected


def test_one_response_to_a_prompt_is_one_causal_sequence() -> None:
    layout, _ = layout_and_ids([([1, 2, 3], [4, 5, 6]), ([7], [])])
    assert [tuple(each) for each in layout.segments] == [(0, 5, 0, 0), (5, 1, 0, 0)]


@given(rows_strategy)
def test_blocks_and_ragged_rows_attend_to_what_segments_say(rows: Rows) -> None:
    """Against softmax over the tokens that each one attends to, in float64."""
    layout, _ = layout_and_ids(rows)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(1, heads, len(layout.source), 4, dtype=torch.float64, generator=generator)
        for heads in (4, 2, 2)
    )
    expected = torch.empty(1, len(layout.source), 4, 4, dtype=torch.float64)
    for token, attended in read_of_segments(layout).items():
        scores = torch.einsum("hd,hkd->hk", q[0, :, token], k[0].repeat_interleave(2, 0)[:, attended]) / 2
        values = v[0].repeat_interleave(2, 0)[:, attended]
        expected[0, token] = torch.einsum("hk,hkd->hd", scores.softmax(-1), values)
    module = torch.nn.Module()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(modeling_flash_attention_utils, "_flash_attention_forward", ragged)
        for found, _ in (
            AttentionInterface()[ATTENTION[name]](module, q, k, v, None, shared_prompts=lambda: layout)
            for name in ("sdpa", "flash_attention_2")
        ):
            torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)


def ragged(q: Tensor, k: Tensor, v: Tensor, **options: object) -> Tensor:
    """What flash-attention computes for ragged rows: causal, so that the last query sees the last key."""
    found = []
    ends = [options[f"cu_seq_lens_{name}"].tolist() for name in "qk"]  # type: ignore[attr-defined]
    for i in range(len(ends[0]) - 1):
        own = (
            each[:, end[i] : end[i + 1]].transpose(1, 2)
            for each, end in zip((q, k, v), (ends[0], ends[1], ends[1]), strict=True)
        )
        query, key, value = own
        size = query.shape[2], key.shape[2]
        mask = torch.ones(size, dtype=torch.bool).tril(size[1] - size[0])
        found.append(scaled_dot_product_attention(query, key, value, mask, enable_gqa=True).transpose(1, 2))
    return torch.cat(found, dim=1)


@pytest.mark.parametrize("asked", [{"sliding_window": 4}, {"dropout": 0.1}, {"softcap": 30.0}, {"s_aux": 1}])
def test_an_attention_with_more_is_refused(asked: dict[str, float]) -> None:
    layout, _ = layout_and_ids([([1], [2, 3])])
    q = torch.zeros(1, 1, 2, 4)
    with pytest.raises(ValueError, match=next(iter(asked))):
        AttentionInterface()[ATTENTION["sdpa"]](
            torch.nn.Module(), q, q, q, None, shared_prompts=lambda: layout, **asked
        )


@given(rows_strategy, st.integers(1, 3), st.integers(4, 12))
def test_rows_of_a_prompt_stay_together_up_to_the_budget(rows: Rows, bound: int, budget: int) -> None:
    rows = rows[: max(len(rows) // bound * bound, 1)]
    fed = fed_rows(nested([row[0] for row in rows]), nested([row[1] for row in rows]))
    blocks = [list(range(len(fed)))[start : start + bound] for start in range(0, len(fed), bound)]
    units = by_prompt(fed, blocks, budget)
    assert sorted(row for unit in units for row in unit) == list(range(len(rows)))
    for unit in units:
        assert {fed[row][0] for row in unit[::bound]} == {fed[unit[0]][0]}
        assert count_fed(fed[row] for row in unit) <= budget or len(unit) <= bound
        assert all(block[0] not in unit or {*block} <= {*unit} for block in blocks)
    of_prompts: dict[bytes, list[list[int]]] = {}
    for unit in units:
        of_prompts.setdefault(fed[unit[0]][0], []).append(unit)
    for unit, following in (pair for own in of_prompts.values() for pair in pairwise(own)):
        assert count_fed(fed[row] for row in [*unit, *following[:bound]]) > budget, "there was room"
