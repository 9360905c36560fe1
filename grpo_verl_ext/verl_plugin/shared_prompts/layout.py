"""Which tokens of a micro-batch are fed to the model, in which order, and what each may attend to.

A loss reads log-probs and entropies of response tokens. Token t of a response is predicted at the position
before it, so no prompt token but the last needs logits, and the last token of a response need not be fed. A
prompt is fed once for all rows that have it: [prompt, response 1, response 2, …], each response without its
last token, attending to the prompt and to itself. Rows of a prompt that are fed the same tokens share them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

_Nested = Any
"""A tensor of ragged rows, of which torch's types know nothing."""
_Fed = tuple[bytes, bytes]
"""The ids of a prompt's tokens, and of a response's that are fed: all but the last."""
_SIZE = 8
"""Bytes of an id."""


class _Segment(NamedTuple):
    """Consecutive fed tokens that attend causally to themselves, and to all of their prefix before."""

    start: int
    length: int
    prefix_start: int = 0
    prefix_length: int = 0


class _Block(NamedTuple):
    """B segments of similar length, filled up to Q tokens that attend to S."""

    queries: Tensor
    """(B, Q) fed tokens."""
    keys: Tensor
    """(B, S) fed tokens."""
    mask: Tensor | None
    """(B, 1, Q, S) whether a query attends to a key; None: token i of a row to its tokens 0 … i."""


@dataclass(frozen=True)
class Layout:
    """L fed tokens, K of which have logits, for the T response tokens of a micro-batch."""

    source: Tensor
    """(L,) fed token → token of the micro-batch."""
    kept: Tensor
    """(K,) fed tokens whose logits are read."""
    logits_of: Tensor
    """(T,) response token → row of logits."""
    token: Tensor
    """(T,) response token → token of the micro-batch."""
    segments: tuple[_Segment, ...]
    """All fed tokens in their order."""

    @cached_property
    def padded(self) -> tuple[list[_Block], Tensor]:
        """The segments for an attention of equal rows, and each fed token's place in the outputs, (L,).

        Segments of one kind whose lengths differ by a quarter, or a few tokens, are a block.
        """
        alike: list[list[_Segment]] = []
        for each in sorted(self.segments, key=lambda each: (each.prefix_length > 0, sum(each[1::2]))):
            first = alike[-1][0] if alike else each
            goes_on = alike and (first.prefix_length > 0) == (each.prefix_length > 0)
            if goes_on and sum(each[1::2]) <= 1.25 * sum(first[1::2]) + 16:
                alike[-1].append(each)
            else:
                alike.append([each])
        device, blocks = self.source.device, []
        output, before = torch.empty(len(self.source), dtype=torch.int64), 0
        for segments in alike:
            start, length, prefix_start, prefix = torch.tensor(segments).T[..., None].unbind()
            query, key = (torch.arange(int(most.max())) for most in (length, prefix + length))
            own = start + torch.minimum(key - prefix, length - 1)
            keys = torch.where(key < prefix, prefix_start + key, own)
            mask = (key <= prefix[..., None] + query[:, None])[:, None].to(device) if prefix.any() else None
            queries = start + torch.minimum(query, length - 1)
            blocks.append(_Block(queries.to(device), keys.to(device), mask))
            fed = query < length
            output[queries[fed]] = before + fed.flatten().nonzero()[:, 0]
            before += fed.numel()
        return blocks, output.to(device)

    @cached_property
    def ragged(self) -> tuple[Tensor, Tensor, Tensor]:
        """The segments for an attention of rows of any length.

        The fed tokens that each one attends to, one after the other; where its queries, and where these keys,
        begin and end: (segments + 1,) each.
        """
        device = self.source.device
        spans = [(each.prefix_start, each.prefix_length, each.start, each.length) for each in self.segments]
        keys = [part for a, b, c, d in spans for part in (range(a, a + b), range(c, c + d))]
        lengths = torch.tensor([(0, 0), *((d, b + d) for _, b, _, d in spans)], dtype=torch.int32)
        begin = lengths.cumsum(0, dtype=torch.int32).T.contiguous().to(device)
        return torch.tensor([*chain(*keys)], device=device), begin[0], begin[1]


def fed_rows(prompts: _Nested, responses: _Nested) -> list[_Fed]:
    """Return what is fed for each row of nested prompts and responses."""
    parts = []
    for nested, left_out in ((prompts, 0), (responses, 1)):
        ids, offsets = nested.values().to("cpu", torch.int64).numpy(), nested.offsets().tolist()
        parts.append([ids[a : max(a, b - left_out)].tobytes() for a, b in pairwise(offsets)])
    if not all(parts[0]):
        raise ValueError("a row has no prompt token, at which its first response token would be predicted")
    return list(zip(*parts, strict=True))


def count_fed(rows: Iterable[_Fed]) -> int:
    """Return the number of tokens fed for these rows: Σ_prompts (P + Σ_different responses (R − 1))."""
    different = {*rows}
    parts = [*{prompt for prompt, _ in different}, *(response for _, response in different)]
    return sum(map(len, parts)) // _SIZE


def layout_of(prompts: _Nested, responses: _Nested) -> Layout:
    """Return the layout of rows with these nested prompts and responses, on their device."""
    sizes, lengths = (each.offsets().diff().tolist() for each in (prompts, responses))
    begin = (prompts.offsets() + responses.offsets()).tolist()  # of each row in the micro-batch
    source: list[range] = []
    kept: list[range] = []
    segments: list[_Segment] = []
    logits = [(range(0), range(0))] * len(sizes)
    fed = read = 0
    of_prompts: dict[bytes, dict[bytes, list[int]]] = {}
    for row, (ids, response) in enumerate(fed_rows(prompts, responses)):
        of_prompts.setdefault(ids, {}).setdefault(response, []).append(row)
    for of_prompt in of_prompts.values():
        row = next(iter(of_prompt.values()))[0]
        prompt, of_last = _Segment(fed, sizes[row]), range(read, read + 1)
        source.append(range(begin[row], begin[row] + prompt.length))
        fed, read = fed + prompt.length, read + 1
        kept.append(range(fed - 1, fed))
        own = []
        for response, rows in of_prompt.items():
            row, length = rows[0], len(response) // _SIZE
            source.append(range(begin[row] + prompt.length, begin[row] + prompt.length + length))
            kept.append(range(fed, fed + length))
            own += [_Segment(fed, length, prompt.start, prompt.length)] * bool(length)
            for row in rows:
                logits[row] = of_last[: lengths[row]], range(read, read + length)
            fed, read = fed + length, read + length
        # One response goes on from its prompt like any text.
        segments += [prompt, *own] if len(own) > 1 else [_Segment(prompt.start, fed - prompt.start)]
    token = [range(start + size, end) for size, (start, end) in zip(sizes, pairwise(begin), strict=True)]
    found = [np.fromiter(chain(*each), np.int64) for each in (source, kept, chain(*logits), token)]
    at = [torch.from_numpy(each).to(prompts.device) for each in found]
    return Layout(at[0], at[1], at[2], at[3], tuple(segments))


def by_prompt(fed: Sequence[_Fed], blocks: Sequence[list[int]], budget: int) -> list[list[int]]:
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
