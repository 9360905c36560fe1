"""Test that value and gradient of every loss are the same for every split, number of ranks and dtype.

Measured through verl's ``ppo_loss`` with its KL term. bnpo, split-dependent by definition, is tested in
tests/algorithms/test_aggregation.py and test_losses.py.
"""

import json

import pytest
import torch
from typer.testing import CliRunner

from grpo_verl_ext.cli import app
from grpo_verl_ext.verl_plugin import invariance
from grpo_verl_ext.verl_plugin.invariance import OUR_CASES, PRESET_CASES, VERL_CASES, Case, measure
from grpo_verl_ext.verl_plugin.presets import PRESETS
from grpo_verl_ext.verl_plugin.ragged_batch import ragged_batch
from grpo_verl_ext.verl_plugin.splits import SPLITS, cut

DTYPES = (torch.float32, torch.float64)
VERL = {case.name: case for case in VERL_CASES}
FACTOR_NULL = VERL["verl seq-mean-token-sum-norm, null"]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "case",
    [case for case in (*OUR_CASES, *PRESET_CASES) if not case.split_dependent],
    ids=lambda c: c.name,
)
@pytest.mark.parametrize("seed", [0, 1])
def test_every_loss_is_invariant(case, dtype, seed):
    measurements = list(measure([case], [dtype], seed=seed))
    assert {(m.split, m.dp_size) for m in measurements} == {(s, d) for s in SPLITS for d in (1, 2, 4)}
    for m in measurements:
        assert m.error <= {torch.float32: 1e-6, torch.float64: 1e-12}[dtype], m


def test_bnpo_is_not_and_is_not_held_to_it():
    (case,) = [case for case in OUR_CASES if case.split_dependent]
    measurements = list(measure([case], [torch.float64]))
    assert case.name == "bnpo"
    assert max(m.gradient_error for m in measurements) > 0.1
    assert all(m.passed for m in measurements)


def test_verls_dr_grpo_with_the_factor_left_null_is_not():
    # The documented settings: the length is then that of the micro-batch's longest response.
    assert max(m.gradient_error for m in measure([FACTOR_NULL], [torch.float64])) > 0.1


def test_verls_dr_grpo_with_the_factor_set_is():
    case = VERL["verl seq-mean-token-sum-norm, set"]
    assert all(m.passed for m in measure([case], [torch.float64]))


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("dp_size", [1, 2, 4])
def test_a_cut_holds_every_row_once(split, dp_size):
    batch = ragged_batch(torch.float64)
    ranks = cut(batch.lengths, split, dp_size)
    assert len(ranks) == dp_size
    assert sorted(row for rank in ranks for part in rank for row in part) == list(range(len(batch)))
    assert all(part for rank in ranks for part in rank)


def test_the_random_batch_has_what_makes_splits_differ():
    batch = ragged_batch(torch.float64)
    lengths = [int(mask.sum()) for mask in batch.response_mask]
    assert min(lengths) == 0
    assert len(set(lengths)) > 8
    assert any(0 < int(mask.sum()) < len(mask) for mask in batch.response_mask)


@pytest.mark.parametrize("name", ["geo_mean", "clip_cov", "kl_cov"])
def test_losses_of_verl_without_a_preset_are_not(name):
    assert max(m.gradient_error for m in measure([VERL[f"verl {name}"]], [torch.float64])) > 0.01


def test_every_preset_has_a_line():
    assert {case.name for case in (*OUR_CASES, *PRESET_CASES)} >= set(PRESETS)


@pytest.fixture
def no_presets(monkeypatch):
    monkeypatch.setattr(invariance, "PRESET_CASES", ())


@pytest.mark.usefixtures("no_presets")
def test_the_command_passes_when_ours_are_invariant(monkeypatch):
    monkeypatch.setattr(invariance, "OUR_CASES", OUR_CASES[:1])
    result = CliRunner().invoke(app, ["invariance", "--json"])
    assert result.exit_code == 0
    rows = json.loads(result.stdout)
    assert len(rows) == len(DTYPES) * len(SPLITS) * 3
    assert all(row["passed"] for row in rows)


@pytest.mark.usefixtures("no_presets")
def test_the_command_fails_and_says_so_when_one_is_not(monkeypatch):
    broken = Case("broken", FACTOR_NULL.loss_mode, FACTOR_NULL.loss_agg_mode)
    monkeypatch.setattr(invariance, "OUR_CASES", (broken,))
    result = CliRunner().invoke(app, ["invariance"])
    assert result.exit_code == 1
    assert "NOT" in result.stdout


@pytest.mark.usefixtures("no_presets")
def test_verls_own_losses_are_told_but_fail_nothing(monkeypatch):
    monkeypatch.setattr(invariance, "OUR_CASES", ())
    monkeypatch.setattr(invariance, "VERL_CASES", (FACTOR_NULL,))
    result = CliRunner().invoke(app, ["invariance", "--verl"])
    assert result.exit_code == 0
    assert "NOT" in result.stdout
