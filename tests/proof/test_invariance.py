"""Test that value and gradient of every loss are the same for every split, number of ranks and dtype.

Measured through verl's ``ppo_loss`` with KL and entropy terms. bnpo, split-dependent by definition, is tested
in tests/algorithms/test_aggregation.py and test_losses.py. DPPO is compared with its formula, written out one
response at a time; other losses of verl's are in tests/plugin/losses/test_preset_losses.py.
"""

import dataclasses
import json
import math
import re

import pytest
import torch
from limits import largest
from mini_batches import actor_config, ragged_batch, value_and_gradient
from typer.testing import CliRunner
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY

from grpo_verl_ext.catalogue import PRESETS
from grpo_verl_ext.cli import app
from grpo_verl_ext.proof import invariance
from grpo_verl_ext.proof.batch import MAX_RESPONSE_LENGTH, SPLITS
from grpo_verl_ext.proof.invariance import OUR_CASES, PRESET_CASES, VERL_CASES, Case, measure

DTYPES = (torch.float32, torch.float64)
CASES = {case.name: case for case in OUR_CASES}
VERL = {case.name: case for case in VERL_CASES}
PRESET = {case.name: case for case in PRESET_CASES}
FACTOR_NULL = VERL["verl seq-mean-token-sum-norm, null"]
EXACT = [case for case in (*OUR_CASES, *PRESET_CASES) if not case.split_dependent]


@pytest.mark.parametrize("dtype", [torch.float64, pytest.param(torch.float32, marks=pytest.mark.ci)], ids=str)
@pytest.mark.parametrize("case", EXACT, ids=lambda c: c.name)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_every_loss_is_invariant(case, dtype, seed):
    """No one is a constant, of infinite error, though GSPO's clip leaves few responses a gradient."""
    measurements = list(measure([case], [dtype], seed=seed))
    assert {(m.split, m.dp_size) for m in measurements} == {(s, d) for s in SPLITS for d in (1, 2, 4)}
    for m in measurements:
        assert m.error <= {torch.float32: 1e-6, torch.float64: 1e-12}[dtype], m


@pytest.mark.parametrize("name", ["gmpo", "gspo", "grpo"])
def test_losses_that_cancel_in_a_value_are_not_held_against_it(name):
    """With seed 4 the value is a fortieth to a 220th of the sum of its parts, rounded to 1e-7 each."""
    cases = [case for case in (*OUR_CASES, *PRESET_CASES) if case.name == name]
    assert all(m.passed for m in measure(cases, [torch.float32], dp_sizes=(2,), seed=4))


def test_bnpo_is_not_and_is_not_held_to_it():
    (case,) = [case for case in OUR_CASES if case.split_dependent]
    measurements = list(measure([case], [torch.float64]))
    assert case.name == "bnpo"
    assert 0.1 < largest(m.gradient_error for m in measurements) < math.inf
    assert all(m.passed for m in measurements)


@pytest.mark.parametrize("name", ["seq-mean-token-sum-norm, null", "geo_mean", "clip_cov", "kl_cov"])
def test_losses_of_verl_without_an_exact_counterpart_are_not(name):
    # With the factor left null, as documented, the length is that of the micro-batch's longest response.
    errors = [m.gradient_error for m in measure([VERL[f"verl {name}"]], [torch.float64])]
    assert 0.01 < largest(errors) < math.inf


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("dp_size", [1, 2, 4])
def test_a_cut_holds_every_row_once(split, dp_size):
    batch = ragged_batch(torch.float64)
    ranks = batch.cut(split, dp_size)
    assert len(ranks) == dp_size
    assert sorted(row for rank in ranks for part in rank for row in part) == list(range(len(batch.lengths)))
    assert all(part for rank in ranks for part in rank)


def test_the_random_batch_has_what_makes_splits_differ():
    batch = ragged_batch(torch.float64)
    lengths = [int(mask.sum()) for mask in batch.response_mask]
    assert min(lengths) == 0
    assert len(set(lengths)) > 8
    rows = [mask[:end].tolist() for mask, end in zip(batch.response_mask, batch.lengths, strict=True)]
    holed = [mask for mask in rows if 0 < sum(mask) < len(mask)]
    assert {(mask[0], mask[len(mask) // 2], mask[-1]) for mask in holed} == {(0, 1, 1), (1, 0, 1), (1, 1, 0)}


def test_the_entropy_term_is_measured_beside_the_loss():
    # token-mean: a token's entropy has the gradient −coefficient/N, and 0 under the mask.
    batch, case = ragged_batch(torch.float64), VERL["verl token-mean"]
    _, gradient = value_and_gradient(actor_config(case, entropy_coeff=0.5), batch, batch.cut("whole", 1))
    of_entropy = gradient[sum(batch.lengths) :]
    assert len(of_entropy) == sum(batch.lengths)
    counts = torch.unique(of_entropy, return_counts=True)
    tokens = int(batch.response_mask.sum())
    assert counts[0].tolist() == pytest.approx([-0.5 / tokens, 0.0], rel=1e-12)
    assert counts[1][0] == tokens


WRONG = {
    "NaN in the value": lambda loss, log_prob: loss + (log_prob.detach() * math.nan).sum(),
    "NaN in the gradient": lambda loss, log_prob: loss + (log_prob - log_prob.detach()).abs().sqrt().sum(),
    "NaN in a cut": lambda loss, log_prob: loss * (math.nan if len(log_prob) == 1 else 1),
    "infinite": lambda loss, log_prob: loss * math.inf,
    "a constant": lambda loss, log_prob: log_prob.new_tensor(1.0),
    "a constant of the data": lambda loss, log_prob: loss.detach(),
    "a gradient of 0": lambda loss, log_prob: 0 * loss,
}


@pytest.fixture
def probe(monkeypatch):
    """Register −(D/N) Σ A log π, changed by a function, as the policy loss ``probe``; return its case."""

    def registered(change):
        def loss(*, log_prob, advantages, response_mask, config, **_):
            counts, summed = config.global_batch_info, (advantages * log_prob * response_mask).sum()
            return change(-summed * counts["dp_size"] / counts["batch_num_tokens"], log_prob), {}

        monkeypatch.setitem(POLICY_LOSS_REGISTRY, "probe", loss)
        return Case("probe", "probe", "token-mean")

    return registered


def test_the_probe_without_a_fault_is_invariant(probe):
    case = probe(lambda loss, log_prob: loss)
    assert {m.verdict for m in measure([case], dp_sizes=(1,))} == {"invariant"}


@pytest.mark.parametrize("split_dependent", [False, True])
@pytest.mark.parametrize("fault", WRONG)
def test_a_loss_without_numbers_or_gradient_fails(probe, fault, split_dependent):
    case = dataclasses.replace(probe(WRONG[fault]), split_dependent=split_dependent)
    measurements = list(measure([case], [torch.float64], dp_sizes=(1,)))
    worst = max(measurements, key=lambda m: m.error)
    assert worst.error == math.inf
    assert worst.verdict == ("NaN or infinite" if "NaN" in fault or fault == "infinite" else "CONSTANT")
    assert not worst.passed
    assert fault == "NaN in a cut" or not any(m.passed for m in measurements)


@pytest.mark.parametrize("nothing", [{"cases": []}, {"dtypes": []}, {"dp_sizes": ()}])
def test_nothing_measured_is_an_error(nothing):
    with pytest.raises(ValueError, match="nothing to measure"):
        list(measure(**nothing))


def test_every_preset_has_a_line():
    assert {case.name for case in (*OUR_CASES, *PRESET_CASES)} >= set(PRESETS)


@pytest.fixture
def one_case(monkeypatch):
    monkeypatch.setattr(invariance, "PRESET_CASES", ())
    monkeypatch.setattr(invariance, "OUR_CASES", OUR_CASES[:1])


@pytest.mark.usefixtures("one_case")
def test_the_command_passes_when_ours_are_invariant():
    result = CliRunner().invoke(app, ["invariance", "--json"])
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found["passed"]
    assert found["not_covered"] == list(invariance.COVERAGE["not_covered"])
    rows = found["measurements"]
    assert len(rows) == len(DTYPES) * len(SPLITS) * 3
    assert all(row["passed"] for row in rows)


@pytest.mark.usefixtures("one_case")
def test_the_command_fails_and_says_so_when_one_is_not(monkeypatch):
    broken = Case("broken", FACTOR_NULL.loss_mode, FACTOR_NULL.loss_agg_mode)
    monkeypatch.setattr(invariance, "OUR_CASES", (broken,))
    result = CliRunner().invoke(app, ["invariance"])
    assert result.exit_code == 1
    assert "NOT invariant" in result.stdout
    said = " ".join(result.stdout.split())
    assert all(line in said for lines in invariance.COVERAGE.values() for line in lines)


def test_json_has_null_for_nan(probe):
    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    probe(WRONG["NaN in the gradient"])
    result = CliRunner().invoke(app, ["invariance", "--loss", "probe", "--json"])
    assert result.exit_code == 1
    found = json.loads(result.stdout, parse_constant=refuse)
    assert not found["passed"]
    assert {row["gradient_error"] for row in found["measurements"]} == {None}


OWN_NORM = ("--loss", "vanilla", "--loss-agg-mode", "seq-mean-token-sum-norm")


@pytest.mark.parametrize(("factor", "status"), [((), 1), (("--loss-scale-factor", "24"), 0)])
def test_the_scale_factor_of_an_own_loss_is_verls_default_or_given(factor, status):
    result = CliRunner().invoke(app, ["invariance", *OWN_NORM, *factor])
    assert result.exit_code == status
    assert ("NOT invariant" in result.stdout) == bool(status)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--loss-scale-factor", "24"), "--loss-scale-factor is 24, but presets have their own"),
        (("--loss-agg-mode", "token-mean"), "--loss-agg-mode is token-mean, but presets have their own"),
        (("--loss", "vanilla", "--loss-agg-mode", "mean"), "Invalid loss_agg_mode: mean"),
        (
            ("--loss", "dr_grpo", "--loss-agg-mode", "seq-mean-token-sum-norm"),
            "actor.loss_scale_factor is null, but .*valid is a number > 0",
        ),
    ],
)
def test_what_a_training_would_not_take_is_one_message(arguments, message):
    result = CliRunner().invoke(app, ["invariance", *arguments])
    assert result.exit_code == 1
    assert re.search(message, result.stderr)
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("factor", ["0", "-1", "x"])
def test_a_scale_factor_is_a_number_of_tokens(factor):
    result = CliRunner().invoke(app, ["invariance", *OWN_NORM, "--loss-scale-factor", factor])
    assert result.exit_code == 2
    assert "--loss-scale-factor" in result.stderr


@pytest.mark.usefixtures("one_case")
def test_verls_own_losses_are_told_but_fail_nothing(monkeypatch):
    monkeypatch.setattr(invariance, "VERL_CASES", (FACTOR_NULL,))
    result = CliRunner().invoke(app, ["invariance", "--verl"])
    assert result.exit_code == 0
    assert "NOT" in result.stdout


IS_FAR = {
    "dppo": lambda p, q: abs(q - p) > 0.15,
    "dppo_kl": lambda p, q: p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q)) > 0.05,
}
"""By the total variation, and by the KL of a token and all others."""


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("name", "is_far"), IS_FAR.items())
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
        config = actor_config(PRESET[name], use_kl_loss=False, use_dynamic_bsz=split == "dynamic")
        for dp_size in (1, 2, 4):
            value, gradient = value_and_gradient(config, batch, batch.cut(split, dp_size))
            # The value is a sum of both signs, measured by the size of its gradient.
            assert abs(value - value_wanted) <= 1e-12 * max(abs(value_wanted), wanted.abs().sum())
            assert (gradient - wanted).abs().max() <= 1e-12 * wanted.abs().max(), (split, dp_size)
