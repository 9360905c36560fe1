"""Test BPO, IcePop, IPO, KLPO and GRPO with an unbiased KL against slow formulas, for every cut."""

from dataclasses import replace
from math import exp, fsum, log

import pytest
import torch
from oracles import token_loss
from verl.trainer.ppo.core_algos import get_adv_estimator_fn

from grpo_verl_ext.proof.batch import SPLITS, Rollout
from grpo_verl_ext.proof.invariance import OUR_CASES, training_of

CASES, ROLLOUT = {case.name: case for case in OUR_CASES}, Rollout.synthetic()
# Row 6 gets tokens beside bounds, where none is drawn: 1e-6 of both probabilities, of π_old; 0.5 and 5 of k.
ROLLOUT.log_prob[6, :2], ROLLOUT.old_log_prob[6, :2] = torch.tensor([[-1e-9, -0.7], [-2e-8, -1e-9]])
ROLLOUT.rollout_log_prob[6, 2:6] = ROLLOUT.old_log_prob[6, 2:6] - torch.tensor([0.49, 0.51, 4.9, 5.1]).log()
# By hand: ℓ, dℓ/d log π of each token; by sequence h = A − 0.1 (ln 2.25 + 0.130812 + 0.750684 + 0.143841).
TOKENS = [(0.5, 0.25, 0.3, 0.25, 1), (0.9, 0.4, 0.95, 0.45, -1), (0.25, 0.5, 0.3, 0.5, 1)]
BY_HAND = {
    "bpo": [0, 0, -0.526803, 5, 0.930276, -0.671053],  # w = 76/51 is cut, 61/11 is 5, 51/76
    "icepop": [-1, 0, 0, 0, -0.833333, -0.833333],  # k = 5/6, 8/19 is cut, 5/3; min = 1.2, −2.25, 0.5
    "ipo": [0.000260943, 0.00102165, 0.947371, 0.947260, -0.833300, -0.833698],  # −A p/m = cut, 18/19, −5/6
    "klpo": [0.967653, -1.396028, -0.683427, 6.486558, 0.988257, -0.712876],  # w = 1.5, 6, 2/3
    "klpo_sequence": [0.848800, -1.224560, -0.748245, 7.101760, 0.754489, -0.544249],  # w as above
    "grpo_unbiased_kl": [-1.184548, 0.0554518, 2.267383, 2.312383, -0.493863, -0.513863],  # r = 2, 2.25, 0.5
}


def of_response(name, tokens):
    """(ℓ, dℓ/d log π) of each token, by its π, π_old, μ, π_ref and A."""
    total = 0.0
    for p, q, *others, _ in tokens:
        assert max(p, q, *others) / min(p, q, *others) < exp(20), "a log-ratio that is limited"
        total += log(p / q) + q * log(q / p) + max(1 - q, 1e-6) * log(max(1 - q, 1e-6) / max(1 - p, 1e-6))
    for p, q, m, ref, a in tokens:
        loss, slope = token_loss(log(p / q), a, 0.2, 0.2, None)
        if name == "bpo":
            w = (1 + 0.01 - q) / (1 + 0.01 - p)
            factor = 0 if (w < 0.8 and a < 0) or (w > 1.28 and a > 0) else -a * min(w, 5)
            yield factor * log(p), factor
        elif name == "icepop":
            k = q / m if 0.5 <= q / m <= 5 else 0
            yield k * loss, k * slope
        elif name == "ipo":
            kept = -a * p / m if abs(p - m) <= 0.1 else 0
            yield kept + 0.001 * log(p / m) ** 2, kept + 0.002 * log(p / m)
        elif name == "grpo_unbiased_kl":  # d/d log π of π_ref/π_old − r log(π_ref/π) − r is r log(π/π_ref)
            yield loss + 0.04 * p / q * (ref / p - log(ref / p) - 1), slope + 0.04 * p / q * log(p / ref)
        else:
            h = a - 0.1 * (total if name == "klpo_sequence" else log(p / q))
            factor = -h * max(1 - q, 1e-6) / max(1 - p, 1e-6)
            yield factor * log(p), factor


@pytest.mark.parametrize("name", BY_HAND)
def test_value_and_gradient_of_every_cut_are_the_formula(name):
    assert sum(of_response(name, TOKENS), ()) == pytest.approx(BY_HAND[name], rel=2e-6)
    level = {"policy_loss.klpo_level": "sequence" if name == "klpo_sequence" else "token"}
    training = training_of(CASES[name.removesuffix("_sequence")], use_kl_loss=False, entropy_coeff=0, **level)
    rows = training.rows(ROLLOUT)
    logs = torch.stack([rows.log_prob, rows.old_log_prob, rows.rollout_log_prob, rows.ref_log_prob], dim=-1)
    columns, masks = torch.cat([logs.exp(), rows.advantages.unsqueeze(-1)], -1), rows.response_mask.bool()
    value, gradient = 0.0, torch.zeros_like(rows.log_prob)
    for i, mask in enumerate(masks):
        losses = [*of_response(name, columns[i, mask].tolist())]
        count = len(losses) * len(masks) if name in ("icepop", "grpo_unbiased_kl") else int(masks.sum())
        value += fsum(loss for loss, _ in losses) / max(count, 1)  # one response has no token
        gradient[i, mask] = gradient.new_tensor([slope / count for _, slope in losses])
    for cut in [(split, dp_size) for split in SPLITS for dp_size in (1, 2, 4)]:
        found, of_both = rows.value_and_gradient(training.actor, rows.cut(*cut))
        assert found.item() == pytest.approx(value, rel=1e-12, abs=0), cut
        assert (of_both[0] - gradient).abs().max() <= 1e-12 * gradient.abs().max(), cut


def test_icepop_is_grpo_with_verls_own_correction():
    own, correction = CASES["icepop"], {"rollout_is": "token", "rollout_is_threshold": "0.5_5.0"}
    plain = replace(own, loss_mode="grpo")
    corrected = replace(plain, values={**own.values, "algorithm.rollout_correction": correction})
    ours, verls, without = (x.weights(x.rows(ROLLOUT)) for x in map(training_of, (own, corrected, plain)))
    assert (ours - verls).abs().max() <= 1e-12 * ours.abs().max()
    assert (ours - without).abs().max() > 1e-3 * ours.abs().max()


def test_klpos_advantage_is_the_reward_itself():
    rewards, mask = torch.tensor([[0.0, 0.25, 0.5], [-1.0, 0.0, 0.0]]), torch.tensor([[1, 1, 1], [1, 1, 0]])
    advantages, _ = get_adv_estimator_fn("raw_reward")(rewards, response_mask=mask, index=["same", "same"])
    assert advantages[mask.bool()].tolist() == [0.75, 0.75, 0.75, -1, -1]
