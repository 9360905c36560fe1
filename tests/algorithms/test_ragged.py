"""Test functions on ragged rows: against the same rows padded, for any blocks; by hand; refusals."""

import math
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from grpo_verl_ext.algorithms import advantages as padded
from grpo_verl_ext.algorithms import gvpo, ragged
from grpo_verl_ext.algorithms.validation import TensorError

F64 = torch.float64
NAN = math.nan
finite = st.floats(-4, 4, allow_subnormal=False)
tokens = st.tuples(st.booleans(), finite, finite)
batches = st.lists(st.lists(tokens, max_size=5), min_size=1, max_size=6).filter(any)
blocks = st.integers(1, 12)


def offsets_of(lengths: list[int]) -> Tensor:
    return torch.tensor([sum(lengths[:i]) for i in range(len(lengths) + 1)])


def laid_out(rows: list[list[tuple[bool, float, float]]]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(mask, a, b, offsets); NaN under the mask."""
    flat = [(int(m), a if m else NAN, b if m else NAN) for row in rows for m, a, b in row]
    mask, *values = zip(*flat, strict=True)
    a, b = (torch.tensor(each, dtype=F64) for each in values)
    return torch.tensor(mask), a, b, offsets_of([*map(len, rows)])


def pad(values: Tensor, offsets: Tensor) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(list(values.split(offsets.diff().tolist())), batch_first=True)


@given(batches, blocks)
def test_each_function_is_its_namesake_on_padded_rows(rows, block):
    mask, a, b, offsets = laid_out(rows)
    full, first, second = (pad(each, offsets) for each in (mask, a, b))
    one_each = torch.arange(1.0, len(rows) + 1, dtype=F64)
    with patch.object(ragged, "BLOCK", block):
        assert torch.equal(ragged.row_lengths(mask, offsets) > 0, padded.has_tokens(full))
        assert torch.equal(ragged.row_values(a, mask, offsets), padded.per_response(first, full))
        spread = ragged.on_row_tokens(one_each, mask, offsets)
        ratios = ragged.row_log_ratio(a, b, mask, offsets)
    assert torch.equal(pad(spread, offsets), padded.on_tokens(one_each, full))
    expected = gvpo.sequence_log_ratio(first, second, full)
    torch.testing.assert_close(ratios, expected, rtol=1e-14, atol=1e-14)  # another order of summation


@given(batches, blocks)
def test_the_probability_of_a_response_is_the_product_over_its_tokens(rows, block):
    mask, log_prob, _, offsets = laid_out(rows)
    own = [[value for m, value, _ in row if m] for row in rows]
    with patch.object(ragged, "BLOCK", block):
        probability, total = ragged.response_probability(log_prob, mask, offsets)
    products = [math.prod(math.exp(value) for value in row) for row in own]
    assert probability.item() == pytest.approx(math.fsum(products) / len(rows), rel=1e-12)
    assert total.item() == pytest.approx(math.fsum(map(math.fsum, own)) / len(rows), rel=1e-12, abs=1e-12)
    assert probability.dtype == total.dtype == F64


@given(st.lists(st.integers(0, 7), max_size=9), blocks)
def test_blocks_hold_every_row_once_and_are_as_full_as_they_may_be(lengths, block):
    offsets = offsets_of(lengths)
    with patch.object(ragged, "BLOCK", block):
        found = list(ragged._row_blocks(offsets))
    assert [row for rows, _ in found for row in range(rows.start, rows.stop)] == list(range(len(lengths)))
    for rows, own in found:
        assert (own.start, own.stop) == (offsets[rows.start], offsets[rows.stop])
        one_more = sum(lengths[rows.start : rows.stop + 1])
        assert own.stop - own.start <= block or rows.stop - rows.start == 1
        assert rows.stop == len(lengths) or one_more > block


def test_by_hand():
    # Rows of 3, 0 and 2 tokens; a tool wrote the first token of the first row, and the last row was rejected.
    mask, offsets = torch.tensor([0, 1, 1, 0, 0]), torch.tensor([0, 3, 3, 5])
    values = torch.tensor([NAN, -1.0, -2.0, NAN, NAN])
    assert ragged.row_lengths(mask, offsets).tolist() == [2, 0, 0]
    assert ragged.row_values(values, mask, offsets).tolist() == [-1, 0, 0]
    assert ragged.on_row_tokens(torch.tensor([5.0, 6.0, 7.0]), mask, offsets).tolist() == [0, 5, 5, 0, 0]
    assert ragged.row_log_ratio(values, values / 2, mask, offsets).tolist() == [-1.5, 0, 0]
    # e⁻³ and twice e⁰: rows without tokens.
    probability, log_prob = ragged.response_probability(values, mask, offsets)
    assert probability.item() == pytest.approx((math.exp(-3) + 2) / 3, rel=1e-12)
    assert log_prob.item() == -1


def test_an_infinite_log_prob_spoils_its_own_row_alone():
    log_prob, old = torch.tensor([-1.0, -math.inf, -1.0]), torch.tensor([-1.5, -1.0, -2.0])
    found = ragged.row_log_ratio(log_prob, old, torch.ones(3), torch.tensor([0, 1, 2, 3]))
    assert found.tolist() == [0.5, -math.inf, 1.0]
    probability, total = ragged.response_probability(log_prob, torch.ones(3), torch.tensor([0, 1, 2, 3]))
    assert (probability.item(), total.item()) == (pytest.approx(2 / 3 * math.exp(-1)), -math.inf)


def test_long_rows_lose_nothing_to_the_order_of_their_tokens():
    # In fp32 2²⁴ + 1 is 2²⁴; the sum of 2²⁴ and two ones is a number of fp32.
    values = torch.tensor([2.0**24, 1.0, 1.0])
    found = ragged.row_log_ratio(values, torch.zeros(3), torch.ones(3), torch.tensor([0, 3]))
    assert (found.item(), found.dtype) == (2**24 + 2, torch.float32)


def test_bf16_is_subtracted_in_fp32():
    a, b = torch.tensor([1.0], dtype=torch.bfloat16), torch.tensor([2.0**-10], dtype=torch.bfloat16)
    found = ragged.row_log_ratio(a, b, torch.ones(1), torch.tensor([0, 1]))
    assert (found.item(), found.dtype) == (1 - 2**-10, torch.float32)


OFFSETS = torch.tensor([0, 2, 3])
ONES = torch.ones(3)
NO_FLOAT = "log_prob is torch.int64; valid is a floating dtype"
REFUSED = {
    "rows that end elsewhere": (lambda: ragged.row_lengths(torch.ones(4), OFFSETS), "the rows end at 3"),
    "padded rows": (lambda: ragged.row_lengths(torch.ones(3, 1), OFFSETS), r"has shape \(3, 1\)"),
    "two lengths": (lambda: ragged.row_values(torch.ones(2), ONES, OFFSETS), r"\(2,\), but response_mask"),
    "a number too many": (lambda: ragged.on_row_tokens(ONES, ONES, OFFSETS), r"\(3,\), but rows has \(2,\)"),
    "integers": (lambda: ragged.row_log_ratio(ONES.long(), ONES, ONES, OFFSETS), NO_FLOAT),
    "integers of a response": (lambda: ragged.response_probability(ONES.long(), ONES, OFFSETS), NO_FLOAT),
    "a mean of nothing": (
        lambda: ragged.response_probability(torch.ones(0), torch.ones(0), torch.zeros(1, dtype=torch.int64)),
        "offsets has no row; valid is one at least",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(name):
    call, message = REFUSED[name]
    with pytest.raises(TensorError, match=message):
        call()
