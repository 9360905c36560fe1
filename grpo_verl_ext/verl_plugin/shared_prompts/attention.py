"""Attention in which several responses share their prompt, as attention functions of transformers.

Each reads the keyword ``shared_prompts``, which returns the `Layout` of the fed tokens, and no mask.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, modeling_flash_attention_utils

from grpo_verl_ext.verl_plugin.shared_prompts.layout import Layout

_OURS = "grpo_ext_shared_prompts"
ATTENTION = {"sdpa": _OURS, **{f"flash_attention_{version}": f"{_OURS}_{version}" for version in (2, 3, 4)}}
"""Attention of transformers → the one of ours in its place."""
_UNKNOWN = ("sliding_window", "softcap", "s_aux", "position_bias", "head_mask")
"""What some models ask of their attention, and these functions do not compute."""


def _attend(  # noqa: PLR0917  # transformers' signature, after the first
    by: Callable[..., Tensor],
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    shared_prompts: Callable[[], Layout],
    scaling: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Return the outputs of the fed tokens, (1, H, L, D) → (1, L, H, D); refuse what is not computed here."""
    asked = [name for name in (*_UNKNOWN, "dropout") if others.get(name)]
    if asked or attention_mask is not None:
        raise ValueError(
            f"shared prompts have no attention with {', '.join(asked) or 'a mask'}, as this model needs. "
            "Type: algorithm.grpo_ext.shared_prompts=false"
        )
    return by(module, query, key, value, shared_prompts(), scaling), None


def _by_sdpa(
    _: nn.Module, query: Tensor, key: Tensor, value: Tensor, shared_prompts: Layout, scaling: float | None
) -> Tensor:
    """Return the outputs by one call a block."""
    repeats = query.shape[1] // key.shape[1]
    of_tokens = [each[0].transpose(0, 1) for each in (query, key, value)]  # (L, heads, D)
    found = []
    blocks, place = shared_prompts.padded
    for queries, keys, mask in blocks:
        q, k, v = (
            x.index_select(0, at.flatten()).view(*at.shape, *x.shape[1:]).transpose(1, 2)
            for x, at in zip(of_tokens, (queries, keys, keys), strict=True)
        )
        if repeats > 1 and query.is_cuda and mask is not None:  # CUDA's kernels with a mask repeat nothing
            k, v = (x.repeat_interleave(repeats, dim=1) for x in (k, v))
        out = scaled_dot_product_attention(
            q, k, v, mask, is_causal=mask is None, scale=scaling, enable_gqa=k.shape[1] != q.shape[1]
        )
        found.append(out.transpose(1, 2).flatten(0, 1))
    return torch.cat(found).index_select(0, place)[None]


def _by_ragged_rows(  # noqa: PLR0917  # `_by_sdpa`'s arguments
    attention: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    shared_prompts: Layout,
    scaling: float | None,
) -> Tensor:
    """Return the same by one call of flash-attention, whose last query of a segment sees the last key."""
    from transformers.integrations.flash_attention import get_target_dtype

    keys, begin_queries, begin_keys = shared_prompts.ragged
    q, k, v = (each.transpose(1, 2) for each in (query, key, value))
    # Looked up in its own module: verl puts another one, for Ulysses, where transformers calls it.
    found: Tensor = modeling_flash_attention_utils._flash_attention_forward(
        q,
        k.index_select(1, keys),
        v.index_select(1, keys),
        attention_mask=None,
        query_length=q.shape[1],
        is_causal=True,
        softmax_scale=scaling,
        cu_seq_lens_q=begin_queries,
        cu_seq_lens_k=begin_keys,
        max_length_q=max(each.length for each in shared_prompts.segments),
        max_length_k=max(each.prefix_length + each.length for each in shared_prompts.segments),
        target_dtype=get_target_dtype(query, module),
        attn_implementation=attention,
    )
    return found


for _attention, _name in ATTENTION.items():
    _function = _by_sdpa if _attention == "sdpa" else partial(_by_ragged_rows, _attention)
    AttentionInterface.register(_name, partial(_attend, _function))
