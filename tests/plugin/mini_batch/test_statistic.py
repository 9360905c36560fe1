"""Test that losses with a statistic of the whole mini-batch equal their formula, however it is cut.

One process computes the formula in float64 on whole mini-batches; the plugin through its trainer and verl's
FSDP2 workers on 1, 2 and 4 ranks, four updates on one rollout.
"""

from pathlib import Path
from typing import Any

import fsdp2_ranks
import pytest
import torch
from limits import largest
from processes import SIZES
from rollout_ranks import (
    BEFORE,
    EPOCHS,
    MINI_BATCHES,
    batch_for_workers,
    relative_error,
    token_log_probs,
    trained,
    variant,
)
from torch import Tensor

from grpo_verl_ext.verl_plugin import wire

SEED = 2**20
"""Of the first update of training step 1."""
MICRO_BATCH, RANKS = "micro-batch", "ranks"
KL_COV = {"algo": "kl_cov", "loss": "kl_cov_mini_batch", "options": {"kl_cov_ratio": 0.2, "ppo_kl_coef": 0.7}}
CLIP_COV = {
    "algo": "clip_cov",
    "loss": "clip_cov_mini_batch",
    "options": {"clip_cov_ratio": 0.15, "clip_cov_lb": 0.0, "clip_cov_ub": 5.0},
    "actor": {"clip_ratio": 0.02, "clip_ratio_low": 0.02, "clip_ratio_high": 0.02, "clip_ratio_c": None},
}


def kl_cov(log_prob: Tensor, old: Tensor, advantage: Tensor, update: int) -> tuple[Tensor, Tensor]:
    """The sum of the N tokens' losses, and which of them are penalised."""
    c = (log_prob.detach() - log_prob.detach().mean()) * (advantage - advantage.mean())
    largest_first = sorted(range(len(c)), key=lambda token: -c[token].item())
    penalised = torch.zeros(len(c), dtype=torch.bool)
    penalised[largest_first[: int(0.2 * len(c))]] = True
    log_ratio = log_prob - old
    penalty = torch.where(penalised, 0.7 * log_ratio.abs(), 0)
    return (-log_ratio.exp() * advantage + penalty).sum(), penalised


def clip_cov(log_prob: Tensor, old: Tensor, advantage: Tensor, update: int) -> tuple[Tensor, Tensor]:
    """The same with the drawn ones."""
    now = log_prob.detach()
    c = (now - now.mean()) * (advantage - advantage.mean())
    ratio = (log_prob - old).exp()
    value, clipped = ratio * advantage, ratio.clamp(0.98, 1.02) * advantage
    allowed = [token for token in range(len(c)) if 0 < c[token] < 5 and value[token] <= clipped[token]]
    order = torch.randperm(len(allowed), generator=torch.Generator().manual_seed(SEED + update)).tolist()
    drawn = torch.zeros(len(c), dtype=torch.bool)
    drawn[[allowed[place] for place in order[: int(0.15 * len(c))]]] = True
    return -torch.minimum(value, clipped)[~drawn].sum(), drawn


FORMULAS = {"kl_cov": kl_cov, "clip_cov": clip_cov}


@pytest.fixture(scope="module")
def rows() -> dict[str, dict[str, Any]]:
    """The rollout with the trainer's advantages, by algorithm; the estimator has tests of its own."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        return {algo: batch_for_workers(monkeypatch, 1, algo=algo)[0].rows for algo in FORMULAS}


def trained_by_the_formula(algo: str, rows: dict[str, Any]) -> dict[str, Any]:
    """Gradients and shares of chosen tokens of four updates, and the parameters after them."""
    model = fsdp2_ranks.tiny_model()
    optimiser = torch.optim.AdamW(model.parameters(), lr=fsdp2_ranks.LEARNING_RATE, weight_decay=0.01)
    old = {
        key: token_log_probs(model, row).detach() for key, row in rows.items() if row["response_mask"].any()
    }
    gradients, shares = [], []
    for update, prompts in enumerate(MINI_BATCHES * EPOCHS):
        keys = [key for key in old if int(rows[key]["uid"].removeprefix("prompt")) in prompts]
        masks = [rows[key]["response_mask"].bool() for key in keys]
        tokens = [
            torch.cat([values[mask] for values, mask in zip(each, masks, strict=True)])
            for each in (
                [token_log_probs(model, rows[key]) for key in keys],
                [old[key] for key in keys],
                [rows[key]["advantages"].double() for key in keys],
            )
        ]
        total, chosen = FORMULAS[algo](*tokens, update)
        optimiser.zero_grad()
        (total / len(chosen)).backward()
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters()})
        shares.append(chosen.double().mean().item())
        optimiser.step()
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    return {"gradients": gradients, "parameters": parameters, "shares": shares}


CUTS: dict[int, dict[str, tuple[int | None, str]]] = {
    1: {"singles": (1, BEFORE), "fours": (4, BEFORE), "dynamic": (None, BEFORE), "whole": (16, MICRO_BATCH)},
    2: {"dynamic": (None, BEFORE), "whole": (8, RANKS)},
    4: {"singles": (1, BEFORE), "whole": (4, RANKS)},
}
"""Ranks → micro-batches, and where the statistic comes from: the mini-batch has 16 rows."""


@pytest.mark.parametrize("dp_size", SIZES)
def test_gradients_and_parameters_of_four_updates(
    dp_size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: dict[str, dict[str, Any]]
) -> None:
    of_algo = {"kl_cov": KL_COV, "clip_cov": CLIP_COV}
    variants = {
        (algo, name): variant(*cut, **settings)
        for algo, settings in of_algo.items()
        for name, cut in CUTS[dp_size].items()
    }
    expected = {algo: trained_by_the_formula(algo, rows[algo]) for algo in of_algo}
    metric = {"kl_cov": "actor/frac_cov_penalised", "clip_cov": "actor/frac_cov_clipped"}
    for (algo, name), result in trained(tmp_path, monkeypatch, dp_size, variants).items():
        wanted = expected[algo]
        pairs = zip(result["gradients"], wanted["gradients"], strict=True)
        errors = [relative_error(*pair) for pair in pairs]
        assert largest(errors) <= 1e-12, (algo, name, errors)
        assert relative_error(result["parameters"], wanted["parameters"]) <= 1e-10, (algo, name)
        assert all(0 < share < 1 for share in wanted["shares"])
        assert len(result["metrics"]["actor/old_log_prob_gap"]) == 1, "of the first update alone"
        if name != "dynamic":
            assert result["metrics"][metric[algo]] == pytest.approx(wanted["shares"], rel=1e-6), (algo, name)
        assert result["forward_passes"] == (3 if CUTS[dp_size][name][1] == BEFORE else 0), (algo, name)


@pytest.mark.ci
def test_verls_loss_of_the_same_name_chooses_in_each_micro_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: dict[str, dict[str, Any]]
) -> None:
    """A positive control: the oracle tells verl's ``kl_cov`` from ours, whose first update is right, too.

    There verl's |log ρ| is that of rounding, and its gradient has a sign at random.
    """
    verls = {**KL_COV, "loss": "kl_cov", "worker": "verl"}
    variants = {"cut": variant(4, **verls), "whole": variant(16, **verls), "ours": variant(4, **KL_COV)}
    found = trained(tmp_path, monkeypatch, 1, variants)
    wanted = trained_by_the_formula("kl_cov", rows["kl_cov"])["gradients"]
    errors = {
        name: [relative_error(*pair) for pair in zip(result["gradients"], wanted, strict=True)]
        for name, result in found.items()
    }
    assert all(error > 1e-2 for error in (errors["cut"][0], errors["whole"][0], errors["cut"][1]))
    assert largest(errors["ours"]) <= 1e-12


def test_each_part_of_a_step_has_a_seed_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first step of four parts is 4, 5, 6, 7; of one part it is 1."""
    batches = [batch_for_workers(monkeypatch, 1, algo="clip_cov", parts=parts, local_trigger_step=part)[1]
               for parts, part in [(1, 0), (4, 0), (4, 3)]]  # fmt: skip
    assert [each.extra_info[wire.Field.STATISTIC_SEED] // SEED for each in batches] == [1, 4, 7]
