"""Which tokens of a micro-batch are fed to the model, in which order, and what each may attend to.

A loss reads log-probs and entropies of response tokens. Token t of a response is predicted at the position
before it, so no prompt token but the last needs logits, and the last token of a response need not be fed. A
prompt is fed once for all rows that have it: [prompt, response 1, response 2, …], each response without its
last token, attending to the prompt and to itself. Rows of a prompt that are fed the same tokens share them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

Nested = Any
"""A tensor of ragged rows, of which torch's types know nothing."""
Fed = tuple[bytes, bytes]
"""The ids of a prompt's tokens, and of a response's that are fed: all but the last."""
_SIZE = 8
"""Bytes of an id."""


class Segment(NamedTuple):
    """Consecutive fed tokens that attend causally to themselves, and to all of their prefix before."""

    start: int
    length: int
    prefix_start: int = 0
    prefix_length: int = 0

    @property
    def attended(self) -> int:
        """How many tokens its last one attends to."""
        return self.prefix_length + self.length


class Block(NamedTuple):
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
    segments: tuple[Segment, ...]
    """All fed tokens in their order."""

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """The segments for an attention of equal rows: few blocks, in which little is filled up."""
        return tuple(_block(each, self.source.device) for each in _similar(self.segments))

    @cached_property
    def output(self) -> Tensor:
        """(L,) fed token → its place in the outputs of all `blocks`, one after the other."""
        found, before = torch.empty(len(self.source), dtype=torch.int64), 0
        for segments in _similar(self.segments):
            width = max(each.length for each in segments)
            for each in segments:
                found[each.start : each.start + each.length] = torch.arange(before, before + each.length)
                before += width
        return found.to(self.source.device)

    @cached_property
    def keys(self) -> Tensor:
        """The fed tokens that each segment attends to, one segment after the other."""
        spans = ((each.prefix_start, each.prefix_length, each.start, each.length) for each in self.segments)
        ranges = [each for a, b, c, d in spans for each in (range(a, a + b), range(c, c + d))]
        return _indices(ranges, self.source.device)

    @cached_property
    def boundaries(self) -> tuple[Tensor, Tensor]:
        """Where each segment's queries, and its `keys`, begin, and the end: two of (segments + 1,)."""
        lengths = torch.tensor([(each.length, each.attended) for each in self.segments])
        ends = torch.nn.functional.pad(lengths.cumsum(0), (0, 0, 1, 0)).to(self.source.device, torch.int32)
        return ends[:, 0].contiguous(), ends[:, 1].contiguous()


def fed_rows(prompts: Nested, responses: Nested) -> list[Fed]:
    """Return what is fed for each row of nested prompts and responses."""
    found = list(zip(_ids(prompts), (row[:-_SIZE] for row in _ids(responses)), strict=True))
    if not all(prompt for prompt, _ in found):
        raise ValueError("a row has no prompt token, at which its first response token would be predicted")
    return found


def count_fed(rows: Iterable[Fed]) -> int:
    """Return the number of tokens fed for these rows: Σ_prompts (P + Σ_different responses (R − 1))."""
    different = {*rows}
    parts = [*{prompt for prompt, _ in different}, *(response for _, response in different)]
    return sum(map(len, parts)) // _SIZE


def layout_of(prompts: Nested, responses: Nested) -> Layout:
    """Return the layout of rows with these nested prompts and responses, on their device."""
    sizes, lengths = (each.offsets().diff().tolist() for each in (prompts, responses))
    begin = (prompts.offsets() + responses.offsets()).tolist()  # of each row in the micro-batch
    source: list[range] = []
    kept: list[range] = []
    segments: list[Segment] = []
    logits = [(range(0), range(0))] * len(sizes)
    fed = read = 0
    of_prompts: dict[bytes, dict[bytes, list[int]]] = {}
    for row, (ids, response) in enumerate(fed_rows(prompts, responses)):
        of_prompts.setdefault(ids, {}).setdefault(response, []).append(row)
    for of_prompt in of_prompts.values():
        row = next(iter(of_prompt.values()))[0]
        prompt, of_last = Segment(fed, sizes[row]), range(read, read + 1)
        source.append(range(begin[row], begin[row] + prompt.length))
        fed, read = fed + prompt.length, read + 1
        kept.append(range(fed - 1, fed))
        own = []
        for response, rows in of_prompt.items():
            row, length = rows[0], len(response) // _SIZE
            source.append(range(begin[row] + prompt.length, begin[row] + prompt.length + length))
            kept.append(range(fed, fed + length))
            own += [Segment(fed, length, prompt.start, prompt.length)] * bool(length)
            for row in rows:
                logits[row] = of_last[: lengths[row]], range(read, read + length)
            fed, read = fed + length, read + length
        # One response goes on from its prompt like any text.
        segments += [prompt, *own] if len(own) > 1 else [Segment(prompt.start, fed - prompt.start)]
    token = [range(start + size, end) for size, (start, end) in zip(sizes, pairwise(begin), strict=True)]
    of_rows = [part for parts in logits for part in parts]
    found = [_indices(each, prompts.device) for each in (source, kept, of_rows, token)]
    return Layout(found[0], found[1], found[2], found[3], tuple(segments))


def _ids(nested: Nested) -> Iterator[bytes]:
    ids, offsets = nested.values().to("cpu", torch.int64).numpy(), nested.offsets().tolist()
    return (ids[start:end].tobytes() for start, end in pairwise(offsets))


def _indices(ranges: list[range], device: torch.device) -> Tensor:
    return torch.cat([torch.arange(each.start, each.stop) for each in ranges]).to(device)


def _similar(segments: Sequence[Segment]) -> list[list[Segment]]:
    """Return the segments in lists of one kind whose lengths differ by a quarter, or a few tokens."""
    found: list[list[Segment]] = []
    for each in sorted(segments, key=lambda each: (each.prefix_length > 0, each.attended)):
        first = found[-1][0] if found else None
        alike = first is not None and bool(first.prefix_length) == bool(each.prefix_length)
        if first is not None and alike and each.attended <= 1.25 * first.attended + 16:
            found[-1].append(each)
        else:
            found.append([each])
    return found


def _block(segments: list[Segment], device: torch.device) -> Block:
    start, length, prefix_start, prefix = torch.tensor(segments).T[..., None].unbind()
    query, key = (torch.arange(int(most.max())) for most in (length, prefix + length))
    queries = start + torch.minimum(query, length - 1)
    own = start + torch.minimum(key - prefix, length - 1)
    keys = torch.where(key < prefix, prefix_start + key, own)
    mask = (key <= prefix[..., None] + query[:, None])[:, None].to(device) if prefix.any() else None
    return Block(queries.to(device), keys.to(device), mask)
