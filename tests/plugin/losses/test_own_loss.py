"""Test users' losses: registration, normalisation over the whole mini-batch, invariance."""

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
from mini_batches import actor_config, ragged_batch
from processes import run_forked
from torch import Tensor
from typer.testing import CliRunner
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY, get_policy_loss_fn
from verl.workers.utils.losses import ppo_loss

from grpo_verl_ext.catalogue import LOSSES
from grpo_verl_ext.catalogue.averages import MiniBatch, averaged
from grpo_verl_ext.cli import app
from grpo_verl_ext.preflight.tested_values import untested
from grpo_verl_ext.proof import verls_defaults
from grpo_verl_ext.proof.gradient import changed
from grpo_verl_ext.proof.invariance import Case, own_case
from grpo_verl_ext.utils.errors import Severity
from grpo_verl_ext.utils.keys import ACTOR, LOSS, MODE
from grpo_verl_ext.verl_plugin.mini_batch.worker import MiniBatchTrainingWorker
from grpo_verl_ext.verl_plugin.own_loss import token_loss

EXAMPLES = Path(__file__).parents[3] / "examples" / "losses"
MODES = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm")


@pytest.fixture
def registry() -> Iterator[dict[str, object]]:
    with patch.dict(POLICY_LOSS_REGISTRY), patch.dict(LOSSES):
        yield POLICY_LOSS_REGISTRY


def registered() -> None:
    @token_loss
    def reinforce(log_prob, old_log_prob, advantages, response_mask, config):
        return -advantages * log_prob


@pytest.mark.parametrize("mode", [MODES[0], *(pytest.param(m, marks=pytest.mark.ci) for m in MODES[1:])])
def test_it_is_invariant_in_every_mode_without_a_word_about_it(registry, assert_invariant, mode: str) -> None:
    registered()
    assert_invariant("reinforce", loss_agg_mode=mode, loss_scale_factor=24 if mode == MODES[-1] else None)


def test_one_that_depends_on_the_cut_fails_with_its_worst(registry, assert_invariant) -> None:
    def of_micro_batch(log_prob, old_log_prob, advantages, response_mask, config):
        return -advantages * log_prob / response_mask.sum()

    with pytest.raises(AssertionError, match=r"NOT invariant: .*error \d.* singles micro-batches × \d ranks"):
        assert_invariant(of_micro_batch)


@pytest.fixture
def of_every_input(registry) -> str:
    @token_loss
    def three_policies(
        log_prob, old_log_prob, advantages, response_mask, config, *, entropy, ref_log_prob, rollout_log_prob
    ):
        kept = (old_log_prob - rollout_log_prob).abs() < 0.2
        return torch.where(kept, -advantages * log_prob, entropy * (log_prob - ref_log_prob) ** 2)

    return three_policies.__name__


def test_the_worker_gives_a_loss_what_it_names_as_the_proof_does(of_every_input, assert_invariant) -> None:
    case, rollout = own_case(of_every_input), ragged_batch(torch.float64)
    assert_invariant(of_every_input)
    actor = actor_config(case)
    worker = MiniBatchTrainingWorker.__new__(MiniBatchTrainingWorker)
    worker._loss, worker.engine_config = LOSSES[of_every_input], SimpleNamespace(strategy="fsdp2")
    rows, numbers = replace(rollout, log_prob=rollout.log_prob.clone().requires_grad_()), [3, 0, 8]
    output, data = rows.micro_batch(numbers, 1)
    sampled = [rows.rollout_log_prob[row, : rows.lengths[row]] for row in numbers]
    data["rollout_log_probs"] = torch.nested.as_nested_tensor(sampled, layout=torch.jagged)
    loss, _ = worker._called(partial(ppo_loss, actor), data=data, model_output=output)
    _, expected = rollout.value_and_gradient(actor, [[numbers]])
    assert expected[0].any()
    assert torch.equal(torch.autograd.grad(loss, rows.log_prob)[0], expected[0])


MORE = {"rollout.calculate_log_probs": "", "actor.use_kl_loss": f" {ACTOR}.kl_loss_coef=0"}


@pytest.mark.parametrize("of", [*MORE, "actor.calculate_entropy"])
def test_a_training_that_cannot_give_an_input_is_refused(of_every_input: str, of: str) -> None:
    given = {f"actor_rollout_ref.{each}": True for each in (*MORE, "actor.calculate_entropy")}
    given |= {LOSS: of_every_input, MODE: "grpo_ext_sync"}
    assert list(untested(changed(verls_defaults(), given))) == []
    for key, value, more in ((f"actor_rollout_ref.{of}", False, MORE.get(of, "")), (MODE, "sync", "")):
        (found,) = untested(changed(verls_defaults(), given | {key: value}))
        wanted = "grpo_ext_sync" if key == MODE else "true"
        assert (found.severity, str(found.problem.fix)) == (Severity.ERROR, f"{key}={wanted}{more}")


def call(name: str, **changes: object) -> tuple[Tensor, dict[str, Tensor]]:
    config = actor_config(Case(name, name, "token-mean"))
    config.global_batch_info.update(dp_size=1, batch_num_tokens=3, global_batch_size=2)
    tensors = {
        "log_prob": torch.tensor([[-1.0, -2.0], [-3.0, float("nan")]]),
        "old_log_prob": torch.tensor([[-1.5, -2.0], [-2.0, float("nan")]]),
        "advantages": torch.tensor([[1.0, 1.0], [0.0, 0.0]]),
        "response_mask": torch.tensor([[1, 1], [1, 0]]),
    }
    return get_policy_loss_fn(name)(**tensors | changes, config=config)


def test_what_is_no_token_reaches_not_even_a_loss_of_whole_responses(registry) -> None:
    @token_loss
    def of_rows(log_prob, old_log_prob, advantages, response_mask, config):
        return -advantages * log_prob.sum(-1, keepdim=True)

    log_prob = torch.tensor([[-1.0, -2.0], [-3.0, float("nan")]], requires_grad=True)
    value, _ = call("of_rows", log_prob=log_prob, advantages=torch.ones(2, 2))
    value.backward()
    assert value.item() == (3 + 3 + 3) / 3
    assert log_prob.grad.tolist() == [[pytest.approx(-2 / 3)] * 2, [pytest.approx(-1 / 3), 0]]


def test_value_and_metrics_by_hand_and_what_is_masked_does_not_count(registry) -> None:
    registered()
    value, metrics = call("reinforce")
    # −(1·−1 + 1·−2 + 0·−3) / 3 tokens.
    assert value.item() == 1.0
    # Old minus new: −0.5, 0 and 1, over 3 tokens; one token of three has advantage 0.
    assert metrics["actor/ppo_kl"].item() == pytest.approx(0.5 / 3)
    # −old: 1.5, 2 and 2 nats.
    assert metrics["actor/entropy_per_token"].item() == pytest.approx(5.5 / 3)
    assert metrics["actor/frac_zero_advantage"].item() == pytest.approx(1 / 3)


def test_a_loss_that_is_averaged_already_is_refused(registry) -> None:
    @token_loss
    def too_early(log_prob, old_log_prob, advantages, response_mask, config):
        return (-advantages * log_prob).mean()

    with pytest.raises(ValueError, match=r"the loss too_early returned shape \(\); valid is one number per"):
        call("too_early")


def test_a_name_that_is_taken_is_refused(registry) -> None:
    def vanilla(log_prob, old_log_prob, advantages, response_mask, config):
        return log_prob

    with pytest.raises(ValueError, match="the policy loss 'vanilla' is already registered by verl"):
        token_loss(vanilla)


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("mean", "loss_agg_mode is mean; valid are token-mean"),
        ("seq-mean-token-sum-norm", "loss_scale_factor is null, but .* valid is a number > 0"),
    ],
)
def test_a_mode_that_cannot_be_meant(mode: str, message: str) -> None:
    mini_batch = MiniBatch(1, 1, 1, 1, None)
    with pytest.raises(ValueError, match=message):
        averaged(torch.zeros(1, 1), torch.ones(1, 1), mode, mini_batch)


class TestExample:
    def test_verl_loads_it_and_its_invariance_is_measured(self) -> None:
        """By the command as installed, whose module path has not the folder that it is started in."""
        words = ["invariance", "--loss", "soft_ratio", "--loss-agg-mode", "seq-mean-token-mean", "--json"]
        code = f"""
        import os, sys
        os.chdir({str(EXAMPLES)!r})
        sys.argv[1:] = {words!r}
        from grpo_verl_ext.cli import app
        app()
        """
        found = run_forked(code, VERL_USE_EXTERNAL_MODULES="my_losses")
        assert found.returncode == 0, found.stderr
        measured = json.loads(found.stdout)["measurements"]
        assert {each["loss"] for each in measured} == {"soft_ratio"}
        assert all(each["passed"] for each in measured)

    def test_a_training_with_it_is_accepted(self) -> None:
        """By all refusals, under a preset with the same average."""
        code = f"""
        import sys
        sys.path.insert(0, {str(EXAMPLES)!r})
        from grpo_verl_ext import preflight
        from grpo_verl_ext.verl_plugin.compose import composed
        loss = "actor_rollout_ref.actor.policy_loss.loss_mode=soft_ratio"
        mode = "trainer.v1.trainer_mode=grpo_ext_sync"
        rollout = ["actor_rollout_ref.rollout.name=vllm", "actor_rollout_ref.rollout.n=8"]
        preflight.check_training(composed(["+algo=grpo", loss, mode, *rollout]))
        print("accepted")
        """
        found = run_forked(code, VERL_USE_EXTERNAL_MODULES="my_losses")
        assert found.stdout.endswith("accepted\n"), found.stderr


def test_an_unknown_loss_is_refused_with_the_valid_ones(registry) -> None:
    registered()
    found = CliRunner().invoke(app, ["invariance", "--loss", "nowhere"])
    assert found.exit_code == 1
    assert "--loss is nowhere, which is not registered; valid are vanilla" in found.stderr
    assert "reinforce" in found.stderr
