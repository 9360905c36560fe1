"""Test the largest of measured errors: a judge must not pass NaN or nothing."""

import math
from itertools import permutations

import pytest
import torch

from grpo_verl_ext.proof import largest


@pytest.mark.parametrize("errors", list(permutations((0.0, math.nan, 1e-16))))
def test_nan_is_infinite_wherever_it_stands(errors):
    assert largest(errors) == math.inf


def test_numbers_and_tensors():
    assert largest([0.5, torch.tensor(2.0), 1]) == 2.0
    assert largest([-math.inf, -1.0]) == -1.0


def test_nothing_is_no_measurement():
    with pytest.raises(ValueError, match="nothing was measured"):
        largest([])
