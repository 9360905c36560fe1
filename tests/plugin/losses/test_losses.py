"""Test the losses through verl's ``ppo_loss``: nested tensors, against verl's own, by hand.

Not covered: model and real ranks, which `mini_batch/test_statistic.py` and `gvpo/test_gvpo_drift.py` have.
"""

import dataclasses
import math

import oracles
import pytest
import torch
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from mini_batches import actor_config, at_first_update, ragged_batch, value_and_gradient
from omegaconf import OmegaConf
from torch import Tensor
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.utils.metric import Metric
from verl.workers.utils.losses import ppo_loss

from grpo_verl_ext import catalogue
from grpo_verl_ext.algorithms.gvpo import GroupRows
from grpo_verl_ext.catalogue import compute, mode_of
from grpo_verl_ext.catalogue.record import INPUTS
from grpo_verl_ext.preflight import CHECKS
from grpo_verl_ext.proof.batch import MAX_RESPONSE_LENGTH, Rollout
from grpo_verl_ext.proof.invariance import OUR_CASES, PRESET_CASES, Case
from grpo_verl_ext.utils.errors import SettingError
from grpo_verl_ext.utils.keys import ESTIMATOR, LOSS
from grpo_verl_ext.verl_plugin import wire
from grpo_verl_ext.verl_plugin.compose import composed
from grpo_verl_ext.verl_plugin.loss_config import LossConfig, check_loss

F64 = torch.float64
CASES = {case.name: case for case in OUR_CASES}
CASE_OF_LOSS = {case.loss_mode: case for case in (*PRESET_CASES, *OUR_CASES)}
CLIPPED = [name for name in CASES if name != "gvpo"]
NO_KL = {"use_kl_loss": False}


def whole_batch(case: Case, batch: Rollout, **overrides: object) -> tuple[Tensor, Tensor]:
    return value_and_gradient(actor_config(case, **NO_KL, **overrides), batch, batch.cut("whole", 1))


def rows_of(batch: Rollout) -> list[tuple[list[float], list[float], list[int]]]:
    """(log-ratios, advantages, mask) of every response."""
    rows = []
    for i, end in enumerate(batch.lengths):
        ratios = (batch.log_prob[i] - batch.old_log_prob[i])[:end].tolist()
        rows.append((ratios, batch.advantages[i, :end].tolist(), batch.response_mask[i, :end].tolist()))
    return rows


def oracle_losses(batch: Rollout, c: float | None) -> tuple[list[list[float]], list[list[int]]]:
    rows = rows_of(batch)
    token_losses = [
        [oracles.token_loss(x, a, 0.2, 0.2, c)[0] for x, a in zip(ratios, advantages, strict=True)]
        for ratios, advantages, _ in rows
    ]
    return token_losses, [mask for *_, mask in rows]


def test_the_names_are_those_that_settings_know():
    assert [get_policy_loss_fn(name).__name__ for name in catalogue.LOSSES] == [*catalogue.LOSSES]


@pytest.mark.parametrize("c", [3.0, None])
@pytest.mark.parametrize("name", ["grpo", "dapo", "dr_grpo", "bnpo"])
def test_the_whole_mini_batch_equals_the_paper(name, c):
    batch = ragged_batch(F64)
    token_losses, masks = oracle_losses(batch, c)
    expected = {
        "grpo": oracles.grpo_loss(token_losses, masks),
        "dapo": oracles.dapo_loss(token_losses, masks),
        "bnpo": oracles.dapo_loss(token_losses, masks),
        "dr_grpo": oracles.dr_grpo_loss(token_losses, masks, MAX_RESPONSE_LENGTH),
    }
    value, _ = whole_batch(CASES[name], batch, clip_ratio_c=c)
    assert value.item() == pytest.approx(expected[name], rel=1e-12)


def test_dapo_per_prompt_equals_the_paper():
    # Rows i, i + 4, … answer prompt i; the estimator's weight 1/N_x is put into the advantages by hand.
    batch = ragged_batch(F64)
    token_losses, masks = oracle_losses(batch, c=3.0)
    ids = [i % 4 for i in range(16)]
    tokens = [sum(sum(m) for m, other in zip(masks, ids, strict=True) if other == i) for i in range(4)]
    weighted = batch.advantages / torch.tensor([tokens[i] for i in ids]).unsqueeze(-1)
    value, _ = whole_batch(CASES["dapo_per_prompt"], dataclasses.replace(batch, advantages=weighted))
    assert value.item() == pytest.approx(oracles.dapo_per_prompt_loss(token_losses, masks, ids), rel=1e-12)


@pytest.mark.parametrize(
    ("name", "loss_agg_mode"),
    [("grpo", "seq-mean-token-mean"), ("dapo", "token-mean"), ("dr_grpo", "seq-mean-token-sum-norm")],
)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (F64, 1e-8)])
@pytest.mark.parametrize("dp_size", [1, 2])
def test_equals_verls_vanilla_with_the_same_aggregation(name, loss_agg_mode, dtype, tolerance, dp_size):
    # 1e-8 in fp64: verl divides the sum over a response by |o| + 1e-8. KL and dual clip are on.
    batch = ragged_batch(dtype)
    ours = CASES[name]
    verls = dataclasses.replace(ours, loss_mode="vanilla")
    ranks = batch.cut("halves", dp_size)
    found = value_and_gradient(actor_config(ours, clip_ratio_high=0.28), batch, ranks)
    expected = value_and_gradient(actor_config(verls, clip_ratio_high=0.28), batch, ranks)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance * float(other.abs().max()))


@pytest.mark.parametrize("name", CLIPPED)
def test_responses_that_were_bad_and_are_left_get_no_gradient(name):
    # Means of log π_old/π_θ: −0.3 with A = 1; 0.3 > 0.2 with A = −1, as if A and log ρ were 0. N and B stay.
    log_prob = torch.tensor([[0.1, 0.5], [-0.3, math.nan]], dtype=F64)
    without = torch.tensor([[1.0, 1.0], [0.0, 0.0]], dtype=F64)
    unmoved = torch.tensor([[0.1, 0.5], [0.0, math.nan]], dtype=F64)
    config = counted(actor_config(CASES[name], policy_loss=LossConfig(off_policy_mask_threshold=0.2)))
    loss, metrics = call(name, config, log_prob=log_prob)
    assert loss.item() == pytest.approx(call(name, log_prob=unmoved, advantages=without)[0].item(), rel=1e-12)
    assert metrics["actor/frac_off_policy_masked"].item() == pytest.approx(1 / 3, rel=1e-6)
    assert "actor/frac_off_policy_masked" not in call(name)[1]


@pytest.mark.parametrize("split", ["whole", "singles", "shuffled"])
@pytest.mark.parametrize("dp_size", [1, 2])
def test_the_off_policy_mask_does_not_depend_on_the_cut(split, dp_size):
    masked = LossConfig(loss_mode="grpo", off_policy_mask_threshold=0.05)
    batch, config = ragged_batch(F64), actor_config(CASES["grpo"], policy_loss=masked)
    found = value_and_gradient(config, batch, batch.cut(split, dp_size))
    expected = value_and_gradient(config, batch, batch.cut("whole", 1))
    unmasked = value_and_gradient(actor_config(CASES["grpo"]), batch, batch.cut("whole", 1))
    assert expected[0].item() != unmasked[0].item()
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12 * float(other.abs().max()))


def test_gmpo_reports_the_tokens_outside_of_its_range():
    # log ρ within −0.1 … 0.3, in nats. A = 1: 0.2 is inside, 0.4 above; A = −1: −0.2 is below.
    config = counted(actor_config(CASES["gmpo"], clip_ratio_low=0.1, clip_ratio_high=0.3))
    _, metrics = call("gmpo", config, log_prob=torch.tensor([[0.2, 0.4], [-0.2, math.nan]], dtype=F64))
    assert metrics["actor/clip_ratio_high"].item() == pytest.approx(1 / 3, rel=1e-6)
    assert metrics["actor/clip_ratio_low"].item() == pytest.approx(1 / 3, rel=1e-6)


def call(name: str = "grpo", config: object = None, **changes: object) -> tuple[Tensor, dict[str, Tensor]]:
    """A loss on two responses of 2 and 1 tokens, old = new = 0, advantages 1 and −1."""
    config = counted(actor_config(CASES[name])) if config is None else config
    arguments = {
        "old_log_prob": torch.zeros(2, 2, dtype=F64),
        "log_prob": torch.zeros(2, 2, dtype=F64),
        "advantages": torch.tensor([[1.0, 1.0], [-1.0, 0.0]], dtype=F64),
        "response_mask": torch.tensor([[True, True], [True, False]]),
        "loss_agg_mode": mode_of(catalogue.LOSSES[name]),
        "rollout_is_weights": None,
    }
    groups = wire.PASSED.get().groups or at_first_update(2, group_size=4)
    with wire.passing(groups=groups, inputs=dict.fromkeys(INPUTS, torch.zeros(2, 2, dtype=F64))):
        return get_policy_loss_fn(name)(config=config, **(arguments | changes))


def counted(config, **changes: object):
    config.global_batch_info.update({"dp_size": 1, "batch_num_tokens": 3, "global_batch_size": 2} | changes)
    return config


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        # ρ = 1.2 and 1.4 with A = 1, 0.8 with A = −1. Within 0.9 … 1.3: −(1.2 + 1.3)/2 and 0.9.
        (0.1, None, (-1.25 + 0.9) / 2),
        # Within 0.7 … 1.1: −1.1 and 0.8.
        (None, 0.1, (-1.1 + 0.8) / 2),
    ],
)
def test_a_side_of_the_clip_range_that_is_null_is_clip_ratio(low, high, expected):
    sides = {"clip_ratio": 0.3, "clip_ratio_low": low, "clip_ratio_high": high}
    log_prob = torch.tensor([[1.2, 1.4], [0.8, 1.0]], dtype=F64).log()
    loss, _ = call("grpo", counted(actor_config(CASES["grpo"], **sides)), log_prob=log_prob)
    assert loss.item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", CLIPPED)
def test_rollout_weights_multiply_token_losses(name):
    weights = torch.tensor([[2.0, 0.5], [3.0, math.nan]], dtype=F64)
    expected = call(name, advantages=torch.tensor([[2.0, 0.5], [-3.0, 0.0]], dtype=F64))[0].item()
    assert call(name, rollout_is_weights=weights)[0].item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("where", ["log_prob", "old_log_prob", "advantages", "rollout_is_weights"])
@pytest.mark.parametrize("garbage", [math.nan, math.inf])
def test_garbage_under_the_mask_reaches_neither_value_nor_gradient_nor_metric(name, where, garbage):
    dirty = torch.tensor([[1.0, -1.0], [0.5, garbage]], dtype=F64).requires_grad_()
    loss, metrics = call(name, **{where: dirty})
    expected, expected_metrics = call(name, **{where: torch.tensor([[1.0, -1.0], [0.5, 0.0]], dtype=F64)})
    assert loss.item() == expected.item()
    assert {k: v.item() for k, v in metrics.items()} == {k: v.item() for k, v in expected_metrics.items()}
    if where == "log_prob":
        loss.backward()
        assert dirty.grad.isfinite().all()
        assert dirty.grad[1, 1] == 0


def metrics_through_verl(
    name: str, batch: Rollout, split: str, dp_size: int, **overrides: object
) -> dict[str, float]:
    """What verl would log: means over micro-batches, then over ranks."""
    overrides |= NO_KL | {"clip_ratio_c": 1.3, "use_dynamic_bsz": split == "dynamic"}
    config, ranks = actor_config(CASE_OF_LOSS[name], **overrides), []
    loss = catalogue.LOSSES[config.policy_loss.loss_mode]
    passed = {name: getattr(batch, name) for name in ("rollout_log_prob", "ref_log_prob")}
    passed |= compute.statistic(loss, batch.tokens, batch.prompt, config)
    for rank in batch.cut(split, dp_size):
        collected: dict[str, Metric] = {}
        for rows in rank:
            groups, width = (
                at_first_update(len(rows), config.rollout_n),
                max(batch.lengths[row] for row in rows),
            )
            inputs = {name: each[rows, :width] for name, each in passed.items()}
            with wire.passing(groups=groups, inputs=inputs):
                metrics = ppo_loss(config, *batch.micro_batch(rows, dp_size))[1]
            for key, metric in metrics.items():
                collected.setdefault(key, metric.init_list()).append(metric)
        ranks.append(collected)
    return {key: float(Metric.aggregate_dp([rank[key] for rank in ranks])) for key in ranks[0]}


@pytest.fixture
def some_zero_advantages() -> Rollout:
    batch = ragged_batch(F64)
    return dataclasses.replace(batch, advantages=batch.advantages * (torch.arange(16) > 0).unsqueeze(-1))


def expected_metrics(batch: Rollout) -> dict[str, float]:
    tokens = [
        (x, a)
        for ratios, advantages, mask in rows_of(batch)
        for x, a, m in zip(ratios, advantages, mask, strict=True)
        if m
    ]
    low = sum(a < 0 and math.exp(x) < 0.8 for x, a in tokens)
    high = sum(a > 0 and math.exp(x) > 1.2 for x, a in tokens)
    counts = {
        "actor/clip_ratio_low": low,
        "actor/clip_ratio_high": high,
        "actor/pg_clipfrac": low + high,
        "actor/pg_clipfrac_lower": sum(a < 0 and math.exp(x) > 1.3 for x, a in tokens),
        "actor/frac_zero_advantage": sum(a == 0 for _, a in tokens),
        "actor/ppo_kl": math.fsum(-x for x, _ in tokens),
        "actor/entropy_per_token": -float(batch.old_log_prob[batch.response_mask.bool()].sum()),
    }
    return {key: count / len(tokens) for key, count in counts.items()}


@pytest.mark.parametrize("split", ["whole", "halves", "singles"])
@pytest.mark.parametrize("dp_size", [1, 2, 4])
def test_metrics_are_token_means_of_the_mini_batch(some_zero_advantages, split, dp_size):
    found = metrics_through_verl("grpo", some_zero_advantages, split, dp_size)
    for key, expected in expected_metrics(some_zero_advantages).items():
        # Fractions are computed in fp32.
        assert found[key] == pytest.approx(expected, rel=1e-6), key


@pytest.mark.parametrize("name", [*catalogue.LOSSES])
def test_the_entropy_is_per_token_whatever_the_loss_averages(some_zero_advantages, name):
    found = metrics_through_verl(name, some_zero_advantages, "halves", 2)
    expected = expected_metrics(some_zero_advantages)
    for key in ("actor/entropy_per_token", "actor/ppo_kl"):
        assert found[key] == pytest.approx(expected[key], rel=1e-6), key


def with_budget(budget: int | None) -> dict[str, object]:
    """The override with which a preset tells the loss the response budget, as Hydra builds it."""
    section = {"_target_": "grpo_verl_ext.verl_plugin.loss_config.LossConfig", "loss_mode": "grpo"}
    return {"policy_loss": instantiate(section | {"max_response_length": budget})}


@pytest.mark.parametrize("split", ["whole", "halves", "singles"])
@pytest.mark.parametrize("dp_size", [1, 2, 4])
@pytest.mark.parametrize("budget", [MAX_RESPONSE_LENGTH, MAX_RESPONSE_LENGTH - 6])
def test_the_share_of_truncated_responses(split, dp_size, budget):
    # Cut to the budget, as verl's rollout does; micro-batches of short responses are narrower than it.
    batch = ragged_batch(F64)
    mask, lengths = batch.response_mask[:, :budget], [min(each, budget) for each in batch.lengths]
    batch = dataclasses.replace(batch, lengths=lengths, response_mask=mask)
    # The last row is padding, has no token and is counted, as in the denominators of verl.
    expected = oracles.mean([float(row[budget - 1 : budget].any()) for row in mask])
    found = metrics_through_verl("grpo", batch, split, dp_size, **with_budget(budget))
    assert found["actor/frac_truncated"] == pytest.approx(expected, rel=1e-6)


def test_with_dynamic_batching_the_share_is_weighted_by_tokens():
    # Rows of 4, 2, 1 and 1 tokens with a budget of 4, cut into {4} and {2, 1, 1}: equally many tokens, so
    # that the plain average is exact. The own shares 1/1 and 0/3 would average to 1/2.
    shares = []
    for rows, width in (([4], 4), ([2, 1, 1], 2)):
        mask = torch.arange(width) < torch.tensor(rows).unsqueeze(-1)
        zeros = torch.zeros(mask.shape, dtype=F64)
        config = actor_config(CASES["grpo"], use_dynamic_bsz=True, **with_budget(4))
        config = counted(config, batch_num_tokens=8, global_batch_size=4)
        fields = dict.fromkeys(("old_log_prob", "log_prob", "advantages"), zeros)
        shares.append(call("grpo", config, **fields, response_mask=mask)[1]["actor/frac_truncated"].item())
    assert oracles.mean(shares) == 1 / 4


def test_without_a_budget_nothing_is_said_about_truncation():
    for config in (actor_config(CASES["grpo"]), actor_config(CASES["grpo"], **with_budget(None))):
        assert "actor/frac_truncated" not in call("grpo", counted(config))[1]


@pytest.mark.parametrize(("budget", "shown"), [(0, "0"), (True, "true")])
def test_a_budget_that_is_none_is_refused(budget, shown):
    with pytest.raises(InstantiationException, match=rf"max_response_length is {shown}; .*≥ 1.*Type: "):
        with_budget(budget)


@pytest.mark.parametrize(("factor", "shown"), [(None, "null"), (0, "0")])
def test_dr_grpo_never_guesses_the_length(factor, shown):
    case = dataclasses.replace(CASES["dr_grpo"], loss_scale_factor=factor)
    with pytest.raises(ValueError, match=f"loss_scale_factor is {shown}, but") as caught:
        call("dr_grpo", counted(actor_config(case)))
    assert "actor_rollout_ref.actor.loss_scale_factor=${data.max_response_length}" in str(caught.value)


def test_a_dual_clip_that_would_clip_everything_is_refused():
    with pytest.raises(ValueError, match=r"clip_ratio_c is 1\.0.*> 1.*Type: .*clip_ratio_c=null"):
        check_loss(catalogue.LOSSES["grpo"], counted(actor_config(CASES["grpo"], clip_ratio_c=1.0)))


@pytest.mark.parametrize("side", ["clip_ratio", "clip_ratio_low", "clip_ratio_high"])
@pytest.mark.parametrize(("value", "shown"), [(-0.2, r"-0\.2"), (math.inf, "inf"), (math.nan, "nan")])
def test_a_clip_range_that_is_none_is_refused(side, value, shown):
    actor = OmegaConf.create({"loss_agg_mode": "seq-mean-token-mean", side: value})
    with pytest.raises(ValueError, match=rf"\.{side} is {shown}; valid is a finite number ≥ 0\."):
        check_loss(catalogue.LOSSES["grpo"], actor)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("grpo", {"off_policy_mask_threshold": 0}, "> 0.*Type: .*=0.5"),
        ("gvpo", {"gvpo_beta": math.nan}, r"> 0.*_beta=0\.1$"),
        ("gvpo", {"gvpo_beta": 0.1, "gvpo_terms": "without_reward"}, "valid are all, with"),
    ],
)
def test_a_value_out_of_its_range_is_refused(name, options, message):
    (*_, key) = options
    config = actor_config(CASES[name], policy_loss=LossConfig(loss_mode=name, **options))
    with pytest.raises(SettingError, match=rf"{key} is .*{message}"):
        check_loss(catalogue.LOSSES[name], counted(config))


def gvpo_groups(index: list[int], size: list[int], drift: list[float]) -> GroupRows:
    drifts, deviation = torch.tensor(drift, dtype=F64), torch.zeros(len(index), dtype=F64)
    return GroupRows(torch.tensor(index), torch.tensor(size), drifts, deviation, deviation)


def test_gvpo_takes_drift_and_size_of_the_group_from_the_worker():
    # β = 0.1, Δ = (3, 1); d = 0.1 (Δ − drift) − A = (−0.9, 1.2) and k = (3, 2).
    log_prob = torch.tensor([[1.0, 2.0], [1.0, 9.0]], dtype=F64)
    groups = gvpo_groups([1, 0], [3, 2], [2.0, -1.0])
    sums = wire.UpdateSums(torch.zeros(2, dtype=F64), torch.zeros(3, dtype=F64))
    with wire.passing(groups=groups, update_sums=sums):
        loss, metrics = call("gvpo", log_prob=log_prob)
    expected = (0.5 * 0.9**2 / 2 + 0.5 * 1.2**2 / 1) / (2 / 4)
    assert loss.item() == pytest.approx(expected, rel=1e-12)
    assert metrics["actor/gvpo_loss"].item() == pytest.approx(expected, rel=1e-12)
    # Each response adds its share of its prompt: |drift| / k.
    assert metrics["actor/gvpo_drift"].item() == pytest.approx((2 / 3 + 1 / 2) / (2 / 4), rel=1e-12)
    assert sums.weights.tolist() == pytest.approx([-1.2, 0.9], rel=1e-6)
    assert wire.PASSED.get().groups is None
    assert wire.PASSED.get().update_sums is None


def test_gvpo_takes_its_own_log_probs_for_old_ones_while_the_policy_has_not_moved():
    # Δ = 0 in value and d = −A, whatever another pass wrote down; it differs by 3 and by 1 nat.
    log_prob = torch.tensor([[1.0, 2.0], [1.0, math.nan]], dtype=F64, requires_grad=True)
    groups = dataclasses.replace(gvpo_groups([1, 0], [3, 2], [0.0, 0.0]), old_is_current=True)
    with wire.passing(groups=groups):
        loss, metrics = call("gvpo", log_prob=log_prob)
    loss.backward()
    assert metrics["actor/gvpo_var_term"].item() == 0
    assert metrics["actor/gvpo_log_prob_gap"].item() == pytest.approx((3 + 1) / 2, rel=1e-12)
    assert metrics["actor/ppo_kl"].item() == pytest.approx(-(1 + 2 + 1) / 3, rel=1e-6), "as measured"
    # β d_i / (k_i − 1) / P with β = 0.1, d = (−1, 1), k = (3, 2), P = 2/4.
    expected = torch.tensor([[-0.1, -0.1], [0.2, 0.0]], dtype=F64)
    torch.testing.assert_close(log_prob.grad, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("missing", ["dp_size", "batch_num_tokens", "global_batch_size"])
def test_a_missing_count_is_refused(missing):
    with pytest.raises(ValueError, match=rf"global_batch_info\['{missing}'\] is None.*Type: "):
        call("grpo", counted(actor_config(CASES["grpo"]), **{missing: None}))


@pytest.mark.parametrize("name", ["dapo_per_prompt", "gvpo"])
@pytest.mark.parametrize("other", [ESTIMATOR, LOSS])
def test_one_half_of_a_pair_is_refused(name, other):
    words = [f"+algo={name.removesuffix('_per_prompt')}", f"{ESTIMATOR}={name}", f"{LOSS}={name}"]
    with pytest.raises(ValueError, match=rf"belong together.*Type: .*loss_mode={name}"):
        CHECKS["settings"](composed([*words, f"{other}=dapo"]))
