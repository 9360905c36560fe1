"""Test that DPPO through verl's worker equals its paper's formula in float64, at every cut.

The formula is written out here, one response at a time. The rollout has masks with holes, a response without
tokens and groups of four and three; its cuts are those of `invariance`. Other losses of verl's are compared
by hand and with TRL in tests/plugin/losses/test_preset_losses.py.
"""

import math

import pytest
import torch
from mini_batches import actor_config, ragged_batch, value_and_gradient

from grpo_verl_ext.proof.batch import MAX_RESPONSE_LENGTH, SPLITS
from grpo_verl_ext.proof.invariance import PRESET_CASES

CASES = {case.name: case for case in PRESET_CASES}


def total_variation(p: float, q: float) -> bool:
    return abs(q - p) > 0.15


def binary_kl(p: float, q: float) -> bool:
    return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q)) > 0.05


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("name", "is_far"), [("dppo", total_variation), ("dppo_kl", binary_kl)])
def test_dppo_is_its_formula_at_every_cut(name, is_far, seed) -> None:
    """A token has the policy gradient with its ratio, or none: where it left the region, away from it."""
    batch = ragged_batch(torch.float64, seed)
    size = len(batch.lengths) * MAX_RESPONSE_LENGTH
    expected = torch.zeros_like(batch.log_prob)
    for row, token in batch.response_mask.nonzero().tolist():
        columns = batch.log_prob, batch.old_log_prob, batch.advantages
        now, old, advantage = (each[row, token].item() for each in columns)
        left = is_far(math.exp(old), math.exp(now)) and advantage * (now - old) > 0
        expected[row, token] = 0 if left else -math.exp(now - old) * advantage / size
    wanted, value_wanted = expected[batch.given], (expected * batch.log_prob).sum()
    for split in SPLITS:
        config = actor_config(CASES[name], use_kl_loss=False, use_dynamic_bsz=split == "dynamic")
        for dp_size in (1, 2, 4):
            value, gradient = value_and_gradient(config, batch, batch.cut(split, dp_size))
            # The value is a sum of both signs, measured by the size of its gradient.
            assert abs(value - value_wanted) <= 1e-12 * max(abs(value_wanted), wanted.abs().sum())
            assert (gradient - wanted).abs().max() <= 1e-12 * wanted.abs().max(), (split, dp_size)
