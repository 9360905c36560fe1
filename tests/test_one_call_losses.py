"""Test the one-call losses: by hand, against what verl calls at a difference of exactly 0, their doctests.

Not covered: presets on verl's own losses, which have no function here; the formulas themselves, in
tests/algorithms.
"""

import doctest
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from mini_batches import ragged_batch
from torch import Tensor
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY
from verl.workers.config import ActorConfig

import grpo_verl_ext
from grpo_verl_ext import catalogue, losses
from grpo_verl_ext.algorithms.gvpo import GroupRows
from grpo_verl_ext.algorithms.validation import TensorError
from grpo_verl_ext.catalogue import Algorithm, Estimator, GroupLoss, Preset, TokenLoss, compute
from grpo_verl_ext.catalogue.grpo import GRPO
from grpo_verl_ext.proof.batch import Rollout
from grpo_verl_ext.utils.errors import SettingError
from grpo_verl_ext.verl_plugin import wire
from grpo_verl_ext.verl_plugin.loss_config import LossConfig

NAMES = dir(losses)
PROMPTS = [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3]
BUDGET = 24


def test_every_algorithm_with_a_loss_of_this_package_has_a_function() -> None:
    to_call = (each for each in catalogue.ALGORITHMS.values() if not each.no_call)
    assert set(NAMES) == {each.name for each in to_call if isinstance(each.loss, TokenLoss | GroupLoss)}
    assert {"grpo", "dapo", "dapo_per_prompt", "dr_grpo", "gvpo"} <= {*NAMES}
    assert grpo_verl_ext.losses is losses


@pytest.mark.parametrize("name", NAMES)
def test_its_docstring_has_formula_gradient_and_paper_and_its_example_runs(name: str) -> None:
    doc = str(getattr(losses, name).__doc__)
    for phrase in (catalogue.ALGORITHMS[name].paper, "Loss: ", "Gradient flows through ``log_prob``"):
        assert phrase in doc
    assert doc.count("Args:") == 1
    (example,) = doctest.DocTestFinder().find(getattr(losses, name), name, module=False, globs={})
    finished = doctest.DocTestRunner().run(example)
    assert (finished.failed, finished.attempted) == (0, 8)


# By hand: responses of 2 and 1 tokens with rewards 1 and 0, all ratios 1

LOG_PROB = torch.tensor([[-1.0, -2.0], [-1.5, -0.5]])
MASK = torch.tensor([[1, 1], [1, 0]])
BY_HAND: dict[str, tuple[float, dict[str, Any]]] = {
    # A = ±½/(√½ + 1e-6) = ±0.70711; −(A − A)/2
    "grpo": (0.0, {}),
    # −(2A − A)/3
    "dapo": (-0.235702, {}),
    "bnpo": (-0.235702, {}),
    "lite_ppo": (-0.235702, {}),
    # one prompt of N_x = 3 tokens: the same
    "dapo_per_prompt": (-0.235702, {}),
    # A = ±½: −(2·½ − ½)/(2·5)
    "dr_grpo": (-0.05, {"loss_scale_factor": 5}),
    # A = ±½/½: −(2 − 1)/3
    "maxrl": (-0.333333, {}),
    # d = −A: ½(¼ + ¼)/(2 − 1)
    "gvpo": (0.25, {}),
    # −½[½(−1 − 2) − ½(−1.5)]
    "topr": (0.375, {}),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_the_value_by_hand(name: str) -> None:
    expected, settings = BY_HAND[name][0], BY_HAND[name][1] | {"groups": ["a", "a"]}
    rewards = torch.tensor([1.0, 0.0])
    loss, _ = getattr(losses, name)(LOG_PROB, LOG_PROB, MASK, rewards=rewards, **settings)
    for same in ([1.0, 0.0], rewards.numpy()):
        assert getattr(losses, name)(LOG_PROB, LOG_PROB, MASK, rewards=same, **settings)[0] == loss
    assert loss.item() == pytest.approx(expected, abs=2e-6)


def test_a_later_update_of_gvpo_is_its_formula() -> None:
    """The paper's loss, its mean log-ratio included, by autograd; groups of three and of two."""
    generator = torch.Generator().manual_seed(0)
    log_prob, old = torch.randn(2, 5, 3, generator=generator, dtype=torch.float64)
    mask = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 1], [0, 1, 1]])
    rewards = torch.tensor([1.0, 0.0, 0.5, 2.0, 1.0], dtype=torch.float64)
    first, second = log_prob.clone().requires_grad_(), log_prob.clone().requires_grad_()
    loss, _ = losses.gvpo(first, old, mask, rewards=rewards, groups=["x", "x", "x", "y", "y"], gvpo_beta=0.3)
    delta = ((second - old) * mask).sum(-1)
    expected = torch.zeros((), dtype=torch.float64)
    for rows in (slice(0, 3), slice(3, 5)):
        d, r = delta[rows], rewards[rows]
        residual = 0.3 * (d - d.mean()) - (r - r.mean())
        expected = expected + 0.5 * (residual**2).sum() / (len(r) - 1) / 2
    loss.backward()
    expected.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(first.grad, second.grad, rtol=1e-12, atol=1e-15)


# The same as what verl calls


def exact(batch: Rollout) -> Rollout:
    """Log-probs as multiples of 1/64, whose sums have no rounding in whatever order."""
    log_prob, old = ((64 * each).round() / 64 for each in (batch.log_prob, batch.old_log_prob))
    return replace(batch, log_prob=log_prob, old_log_prob=old)


def verls_config(algorithm: Algorithm, tokens: int) -> ActorConfig:
    preset = catalogue.PRESETS.get(algorithm.values_of or algorithm.name, Preset())
    config = ActorConfig(
        strategy="fsdp",
        rollout_n=4,
        ppo_micro_batch_size_per_gpu=1,
        policy_loss=LossConfig(loss_mode=algorithm.loss.name, **preset.options),
        loss_agg_mode=algorithm.loss_agg_mode,
        loss_scale_factor=BUDGET,
        **preset.numbers,
    )
    config.global_batch_info.update(dp_size=1, batch_num_tokens=tokens, global_batch_size=16)
    return config


def groups_by_hand(log_prob: Tensor, old: Tensor, mask: Tensor) -> GroupRows:
    """k, Δ̄ and the deviations of log π_old of each prompt, as a worker tells the loss."""
    member, group = mask.any(-1), torch.tensor(PROMPTS)
    sums = [((log_prob - old).double() * mask).sum(-1), (old.double() * mask).sum(-1)]
    size = torch.tensor([int(member[group == each].sum()) for each in PROMPTS])
    drift, mean_old = (torch.stack([of[(group == each) & member].mean() for each in PROMPTS]) for of in sums)
    deviation = torch.where(member, sums[1] - mean_old, 0)
    return GroupRows(group, size, torch.where(member, drift, 0), deviation, deviation)


def needed(name: str, groups: list[Any], log_prob: Tensor = LOG_PROB) -> dict[str, Any]:
    """Arguments without which the loss cannot be called, advantages apart; ``log_prob`` of other policies."""
    if name == "dr_grpo":
        return {"loss_scale_factor": BUDGET}
    asked = {*getattr(catalogue.ALGORITHMS[name].loss, "inputs", ())} - {"statistic"}
    return {"groups": groups} if name in ("gvpo", "dapo_per_prompt") else dict.fromkeys(asked, log_prob)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", NAMES)
def test_equals_the_registered_loss(name: str, dtype: torch.dtype) -> None:
    algorithm, batch = catalogue.ALGORITHMS[name], exact(ragged_batch(dtype))
    log_prob, old, advantages = batch.log_prob, batch.old_log_prob, batch.advantages
    mask = batch.response_mask
    config = verls_config(algorithm, int(mask.sum()))
    first, second = log_prob.clone().requires_grad_(), log_prob.clone().requires_grad_()
    given = needed(name, PROMPTS, old)
    inputs = given | compute.statistic(algorithm.loss, batch.tokens, batch.prompt, config)
    with wire.passing(groups=groups_by_hand(log_prob, old, mask), inputs=inputs):
        expected, metrics = POLICY_LOSS_REGISTRY[algorithm.loss.name](
            old_log_prob=old, log_prob=first, advantages=advantages, response_mask=mask, config=config
        )
    loss, found = getattr(losses, name)(second, old, mask, advantages=advantages, **given)
    expected.backward()
    loss.backward()
    assert first.grad is not None
    assert first.grad.any()
    assert torch.equal(loss, expected)
    assert torch.equal(torch.as_tensor(second.grad), first.grad)
    assert found.keys() == metrics.keys()
    assert [key for key in found if not torch.equal(found[key], metrics[key])] == []


OUTCOMES = [
    name
    for name in NAMES
    if isinstance(each := catalogue.ALGORITHMS[name].estimator, Estimator)
    and not each.needs_steps
    and not each.several_rewards
]


@pytest.mark.parametrize("name", OUTCOMES)
def test_rewards_become_the_advantages_of_the_registered_estimator(name: str) -> None:
    algorithm, batch = catalogue.ALGORITHMS[name], exact(ragged_batch(torch.float32))
    log_prob, old, mask = batch.log_prob, batch.old_log_prob, batch.response_mask
    rewards = torch.rand(16, generator=torch.Generator().manual_seed(1))
    of_tokens = torch.zeros(mask.shape)
    of_tokens[:, 0] = rewards
    preset = catalogue.PRESETS.get(algorithm.values_of or name, Preset())
    config = {"grpo_ext": {"scale_rewards": preset.scale_rewards}}
    advantages, _ = ADV_ESTIMATOR_REGISTRY[algorithm.estimator.name](
        of_tokens, mask, index=PROMPTS, config=config
    )
    function, settings = getattr(losses, name), needed(name, PROMPTS, old) | {"groups": PROMPTS}
    expected, _ = function(log_prob, old, mask, advantages=advantages, **settings)
    loss, _ = function(log_prob, old, mask, rewards=rewards, **settings)
    assert advantages.any()
    assert torch.equal(loss, expected)


@pytest.mark.parametrize("groups", [torch.tensor([7, 7]), ("a", "a"), np.array(["a", "a"])], ids=repr)
def test_prompts_are_named_by_whatever_tells_them_apart(groups: Any) -> None:
    loss, _ = losses.gvpo(LOG_PROB, LOG_PROB, MASK, rewards=torch.tensor([1.0, 0.0]), groups=groups)
    assert loss.item() == 0.25


def test_several_rewards_are_normalised_each() -> None:
    """Equal rewards up to a factor: both columns, normalised, are the same, so the weights do not matter."""
    rewards = torch.tensor([[1.0, 10.0], [0.0, 0.0]])
    for weights in (None, [3.0, 1.0], torch.tensor([3.0, 1.0])):
        given: dict[str, Any] = {"rewards": rewards, "groups": ["a", "a"], "reward_weights": weights}
        loss, _ = losses.gdpo(LOG_PROB, LOG_PROB, MASK, **given)
        assert loss.item() == pytest.approx(-0.235702, abs=2e-6)


def test_weights_of_rewards_are_as_exact_as_the_rewards() -> None:
    log_prob = torch.zeros(6, 1, dtype=torch.float64, requires_grad=True)
    rewards = np.random.default_rng(0).normal(size=(6, 2))
    given = {"rewards": rewards, "groups": [0, 0, 0, 1, 1, 1], "reward_weights": [0.1, 0.7]}
    loss, _ = losses.gdpo(log_prob, log_prob, torch.ones(6, 1), **given)
    of_group = rewards.reshape(2, 3, 2)
    of_group = (of_group - of_group.mean(1, keepdims=True)) / (of_group.std(1, ddof=1, keepdims=True) + 1e-6)
    summed = (of_group * [0.1, 0.7]).sum(-1).reshape(6)
    expected = (summed - summed.mean()) / (summed.std(ddof=1) + 1e-6)
    (gradient,) = torch.autograd.grad(loss, log_prob)
    np.testing.assert_allclose(-6 * gradient[:, 0], expected, rtol=1e-12)


# Gradients that a caller accumulates

OF_ALL = ("clip_cov", "kl_cov")  # which compare a token with the whole mini-batch


@pytest.mark.parametrize(
    "name", sorted({*NAMES} - {*OF_ALL, "bnpo"})
)  # BNPO depends on the cut by definition
def test_losses_of_parts_add_up_to_that_of_the_mini_batch(name: str) -> None:
    batch, function = ragged_batch(torch.float64), getattr(losses, name)
    columns = (batch.log_prob, batch.old_log_prob, batch.response_mask, batch.advantages)
    counts = (int(batch.response_mask.sum()), 16, 4)
    found = []
    for parts in ((slice(0, 16),), (slice(0, 4), slice(4, 16))):
        log_prob, value = batch.log_prob.clone().requires_grad_(), torch.tensor(0.0, dtype=torch.float64)
        for part in parts:
            _, old, mask, advantages = (each[part] for each in columns)
            given = {"advantages": advantages, **needed(name, PROMPTS[part], old)}
            given["counts"] = counts if len(parts) > 1 else None
            value = value + function(log_prob[part], old, mask, **given)[0]
        found.append((value.detach(), *torch.autograd.grad(value, log_prob)))
    assert found[0][1].any()
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("name", [*OF_ALL, "lite_ppo", "gdpo"])
def test_a_part_of_what_is_compared_as_a_whole_is_refused(name: str) -> None:
    rewards = torch.rand(2, 2) if name == "gdpo" else torch.rand(2)
    given = {"advantages": LOG_PROB} if name in OF_ALL else {"rewards": rewards, "groups": [0, 0]}
    with pytest.raises(TensorError, match="compares a response with all of the mini-batch"):
        getattr(losses, name)(LOG_PROB, LOG_PROB, MASK, counts=(9, 4, 2), **given)
    words = getattr(losses, name).__doc__.partition("counts: ")[2]
    assert "efused" in words.partition("Returns:")[0]


# Arguments


@pytest.mark.parametrize("name", NAMES)
def test_what_stands_under_the_mask_does_not_count(name: str) -> None:
    log_prob = torch.where(MASK.bool(), LOG_PROB, torch.nan).requires_grad_()
    advantages = torch.tensor([[0.5, 0.5], [-0.5, torch.nan]])
    settings = needed(name, ["a", "a"])
    if name != "gvpo":
        settings["rollout_is_weights"] = torch.tensor([[1.0, 1.0], [1.0, torch.nan]])
    loss, _ = getattr(losses, name)(log_prob, LOG_PROB, MASK, advantages=advantages, **settings)
    loss.backward()
    assert loss.isfinite()
    assert torch.as_tensor(log_prob.grad).isfinite().all()


PAIR: dict[str, Any] = {"rewards": torch.ones(2), "groups": [0, 0]}
REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({}, TensorError, "grpo has neither advantages nor rewards"),
    (PAIR | {"advantages": LOG_PROB}, TensorError, "grpo has both"),
    (PAIR | {"groups": None}, TensorError, "groups is None"),
    (PAIR | {"groups": [0]}, TensorError, "groups has shape (1,)"),
    (PAIR | {"rewards": torch.ones(3)}, TensorError, "rewards has shape (3,)"),
    (PAIR | {"rewards": torch.ones(2).long()}, TensorError, "rewards is torch.int64"),
    (PAIR | {"rewards": torch.tensor([1, torch.nan])}, ValueError, "the reward of row 1 is nan"),
    ({"advantages": torch.ones(1, 2)}, TensorError, "advantages has shape (1, 2)"),
    (PAIR | {"counts": (2, 2, 1)}, TensorError, "counts is (2, 2, 1); valid are"),
    (PAIR | {"counts": (9, 2)}, TensorError, "counts is (9, 2); valid are"),
    (PAIR | {"rollout_is_weights": torch.ones(2)}, TensorError, "rollout_is_weights has shape (2,)"),
    (PAIR | {"off_policy_mask_threshold": -1.0}, SettingError, "threshold is -1.0; valid is a finite"),
    (PAIR | {"off_policy_mask_threshold": torch.nan}, SettingError, "threshold is nan; valid is a finite"),
    ({"advantages": LOG_PROB, "clip_ratio_low": -1.0}, SettingError, "clip_ratio_low is -1.0"),
    (PAIR | {"scale_rewards": "std"}, SettingError, "scale_rewards is std; valid are group, batch, none"),
    ({"advantages": LOG_PROB, "beta": 1}, TypeError, "unexpected keyword argument 'beta'"),
]


@pytest.mark.parametrize(("given", "error", "message"), REFUSED, ids=[message for *_, message in REFUSED])
def test_arguments_that_do_not_fit_are_refused(
    given: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as refused:
        losses.grpo(LOG_PROB, LOG_PROB, MASK, **given)
    assert message in str(refused.value)


def test_a_wrong_option_is_refused_with_its_valid_values() -> None:
    with pytest.raises(SettingError, match=r"gvpo_beta is -1.*valid is a finite number > 0"):
        losses.gvpo(LOG_PROB, LOG_PROB, MASK, advantages=LOG_PROB, groups=[0, 0], gvpo_beta=-1.0)
    with pytest.raises(SettingError, match=r"kimi_tau is 0.*valid is a finite number > 0"):
        losses.kimi(LOG_PROB, LOG_PROB, MASK, advantages=LOG_PROB, kimi_tau=0.0)
    with pytest.raises(TypeError, match="missing a required argument: 'loss_scale_factor'"):
        losses.dr_grpo(LOG_PROB, LOG_PROB, MASK, advantages=LOG_PROB)


def test_verls_losses_and_unknown_names_have_no_function() -> None:
    with pytest.raises(AttributeError, match=r"verl's own. Type: .*get_policy_loss_fn\('gspo'\)"):
        losses.gspo  # noqa: B018
    with pytest.raises(AttributeError, match=r"valid are bnpo, .*, vespo"):
        losses.no_such  # noqa: B018


def test_a_new_record_has_its_function(monkeypatch: pytest.MonkeyPatch) -> None:
    new = replace(
        GRPO, name="new", loss=catalogue.ALGORITHMS["vespo"].loss, has_preset=False, values_of="vespo"
    )
    monkeypatch.setitem(catalogue.ALGORITHMS, "new", new)
    given = {"rewards": torch.tensor([1.0, 0.0]), "groups": [0, 0]}
    loss, _ = losses.new(LOG_PROB, LOG_PROB, MASK, **given)
    expected, _ = losses.vespo(LOG_PROB, LOG_PROB, MASK, **given)
    assert torch.equal(loss, expected)
    assert "new" in dir(losses)


@pytest.mark.parametrize("name", sorted({*NAMES} - {"gvpo"}))
def test_weights_of_tokens_are_constants(name: str) -> None:
    advantages, found = torch.tensor([[0.5, 0.5], [-0.5, 0.0]]), []
    for is_constant in (True, False):
        log_prob = LOG_PROB.clone().requires_grad_()
        weights = (log_prob - LOG_PROB + 0.3).exp()
        given = {"rollout_is_weights": weights.detach() if is_constant else weights}
        settings = needed(name, ["a", "a"]) | {"advantages": advantages} | given
        loss, _ = getattr(losses, name)(log_prob, LOG_PROB, MASK, **settings)
        found += torch.autograd.grad(loss, log_prob)
    assert torch.equal(*found)


@pytest.mark.parametrize("name", ["grpo", "gvpo", "topr", "kimi", "dr_grpo"])
def test_no_gradient_flows_through_the_old_log_probs_or_the_advantages(name: str) -> None:
    """Though they may be the very tensor whose gradient is asked for."""
    found = []
    for old in (LOG_PROB, None):
        log_prob = LOG_PROB.clone().requires_grad_()
        advantages = torch.tensor([[0.5, 0.5], [-0.5, 0.0]], requires_grad=old is None)
        given = log_prob if old is None else old
        settings = {"advantages": advantages} | needed(name, ["a", "a"])
        loss, _ = getattr(losses, name)(log_prob, given, MASK, **settings)
        loss.backward()
        found.append(log_prob.grad)
        assert advantages.grad is None
    assert found[0].any()
    assert torch.equal(*found)


def test_rewards_of_low_precision_are_added_up_as_in_a_training() -> None:
    """In bf16 a count ends at 256; in fp16 a deviation of 500 has no square."""
    rows = 600
    log_prob, mask = torch.zeros(rows, 1, requires_grad=True), torch.ones(rows, 1)
    rewards = (torch.arange(rows) % 2).float()
    gradients, groups = [], [row // 2 for row in range(rows)]
    for dtype in (torch.float32, torch.bfloat16):
        loss, _ = losses.lite_ppo(log_prob, log_prob, mask, rewards=rewards.to(dtype), groups=groups)
        gradients += torch.autograd.grad(loss, log_prob)
    assert torch.equal(*gradients)
    large = torch.tensor([1000.0, 0.0], dtype=torch.float16)
    loss, _ = losses.grpo(log_prob[:2], log_prob[:2], mask[:2], rewards=large, groups=[0, 0])
    assert torch.autograd.grad(loss, log_prob)[0][:2].abs().min() > 0.1


def test_numbers_of_numpy_and_torch_are_numbers() -> None:
    moved, advantages = LOG_PROB + torch.tensor([[1.0, 1.0], [1.0, 0.0]]), torch.ones(2, 2)

    def value(high: Any) -> float:
        loss, _ = losses.grpo(moved, LOG_PROB, MASK, advantages=advantages, clip_ratio_high=high)
        return loss.item()

    assert value(0.5) == pytest.approx(-1.5)
    assert value(torch.tensor(0.5)) == value(np.float32(0.5)) == value(0.5)
    # without a value for a side, verl takes clip_ratio
    assert value(None) == pytest.approx(-1.2)


@pytest.mark.parametrize("length", [0, None, "2"])
def test_a_constant_length_that_is_none_is_refused(length: Any) -> None:
    with pytest.raises(SettingError, match=r"loss_scale_factor is .*; valid is a number > 0"):
        losses.dr_grpo(LOG_PROB, LOG_PROB, MASK, advantages=torch.ones(2, 2), loss_scale_factor=length)


def test_any_number_but_0_is_a_token() -> None:
    wanted, _ = losses.grpo(LOG_PROB, LOG_PROB, MASK, advantages=torch.ones(2, 2))
    found, _ = losses.grpo(LOG_PROB, LOG_PROB, 2 * MASK, advantages=torch.ones(2, 2))
    assert found.item() == wanted.item()
