"""Test what is exact by itself: targets, advantages and losses under rejection, weights and distillation."""

import functools
from typing import Any

import oracles
import pytest
import torch
from mini_batches import actor_config, at_first_update, ragged_batch
from omegaconf import OmegaConf
from queue_store import Store, trainer_with
from verl.trainer.distillation.losses import distillation_loss, distillation_ppo_loss
from verl.trainer.ppo.core_algos import get_adv_estimator_fn
from verl.trainer.ppo.v1 import get_trainer_cls
from verl.workers.config import DistillationConfig, DistillationLossConfig
from verl.workers.utils.losses import ppo_loss

from grpo_verl_ext.catalogue.requires import OUR_MODES
from grpo_verl_ext.proof.invariance import OUR_CASES, Case
from grpo_verl_ext.verl_plugin import trainer_modes
from grpo_verl_ext.verl_plugin.compose import composed
from grpo_verl_ext.verl_plugin.gvpo import GroupTrainingWorker
from grpo_verl_ext.verl_plugin.reference.parts import ReferenceSyncWorkerMixin
from grpo_verl_ext.verl_plugin.wire import BatchSteps, passing

ACTOR = "actor_rollout_ref.actor"


def test_our_modes_share_what_makes_them_exact() -> None:
    """What the tests of ``grpo_ext_sync`` show of trainer and workers holds for the other trainer_modes."""
    classes = [get_trainer_cls(mode) for mode in OUR_MODES]
    names = ("_balance_batch", "_compute_advantage", "_update_actor", "step")
    of_data = ("_init_dataloader", "_next_train_batch", "_compute_old_log_prob")
    for name in (*names, *of_data, "_save_checkpoint", "_load_checkpoint", "_init_resource_pool_mgr"):
        methods = [getattr(each, name) for each in classes]
        assert methods == [getattr(trainer_modes.GroupTrainerSync, name)] * len(methods)
        assert methods[0].__module__.startswith("grpo_verl_ext."), f"ours comes first for {name}"
    for each in classes:
        config = composed(["+algo=grpo", "+algorithm.grpo_ext.ref_model_sync_steps=2"])
        refreshing = each.worker_with_parts(config)
        assert refreshing.actor_worker_cls is GroupTrainingWorker
        assert refreshing.refresh_reference is ReferenceSyncWorkerMixin.refresh_reference


RESPONSES = {"x": [(1.0, 2), (0.0, 3), (0.5, 1)], "y": [(0.0, 2), (1.0, 2), (0.25, 4)]}
"""Rewards and lengths of the responses to two prompts."""
BETA = 0.3


def targets(monkeypatch: pytest.MonkeyPatch, rejected: str = "", **changes: Any) -> dict[str, dict[str, Any]]:
    """Rows of the responses after the trainer's own calculation of their targets."""
    store = Store()
    generator = torch.Generator().manual_seed(0)
    for prompt, responses in RESPONSES.items():
        for i, (reward, length) in enumerate(responses):
            scores = torch.zeros(length)
            scores[-1] = reward
            old = -torch.rand(length, generator=generator)
            key = f"{prompt}_{i}_0"
            store.rows[key] = {
                "uid": prompt,
                "response_mask": torch.ones(length, dtype=torch.int64),
                "rm_scores": scores,
                "old_log_probs": old,
                "ref_log_prob": -torch.rand(length, generator=generator),
                "rollout_log_probs": old + 3 * (key == rejected),
            }
    config = composed(["+algo=gvpo", f"actor_rollout_ref.actor.policy_loss.gvpo_beta={BETA}"])
    for key, value in changes.items():
        OmegaConf.update(config, key.replace("__", "."), value)
    trainer_with(monkeypatch, store, config)._compute_advantage(store.batch(), {})
    return store.rows


def test_the_reference_is_brought_to_the_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = targets(monkeypatch, algorithm__grpo_ext__gvpo_anchor="ref")
    for prompt, responses in RESPONSES.items():
        own = [rows[f"{prompt}_{i}_0"] for i in range(len(responses))]
        ratios = [float((row["old_log_probs"] - row["ref_log_prob"]).double().sum()) for row in own]
        for row, (reward, _), ratio in zip(own, responses, ratios, strict=True):
            centred = reward - oracles.mean([r for r, _ in responses])
            wanted = centred - BETA * (ratio - oracles.mean(ratios))
            assert row["advantages"].tolist() == pytest.approx([wanted] * len(row["advantages"]), abs=1e-6)


def test_gvpo_leaves_rejected_responses_out_of_their_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """verl rejects a response whose probabilities under rollout and actor differ by a factor e³ a token."""
    rejection = {"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "0.5_2.0"}
    rows = targets(monkeypatch, rejected="x_1_0", algorithm__rollout_correction=rejection)
    assert rows["x_1_0"]["response_mask"].tolist() == [0, 0, 0]
    assert [int(rows[f"x_{i}_0"]["group_size"]) for i in (0, 2)] == [2, 2]
    assert [int(rows[f"y_{i}_0"]["group_size"]) for i in range(3)] == [3, 3, 3]
    # What is left of the prompt are the rewards 1 and 0.5.
    assert rows["x_0_0"]["advantages"].tolist() == pytest.approx([0.25, 0.25])
    assert rows["x_2_0"]["advantages"].tolist() == pytest.approx([-0.25])
    assert rows["x_1_0"]["advantages"].tolist() == [0, 0, 0]


def test_steps_count_for_the_tokens_that_are_left() -> None:
    """A step whose last token is rejected still rewards the tokens before it."""
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])
    steps = BatchSteps(torch.tensor([1.0, 0.25, 0.5]), torch.tensor([0, 0, 1]), torch.tensor([1, 3, 2]))
    algorithm = OmegaConf.create({"adv_estimator": "grpo_process"})

    def advantages(response_mask: torch.Tensor) -> torch.Tensor:
        with passing(steps=steps):
            estimator = get_adv_estimator_fn("grpo_process")
            return estimator(torch.zeros(2, 4), response_mask, ["x", "x"], algorithm)[0]

    left = mask.clone()
    left[0, 1] = left[1, 2] = 0
    assert advantages(mask)[0, 1] != 0
    assert torch.equal(advantages(left), advantages(mask) * left)


def whole_batch(case: Case) -> tuple[Any, ...]:
    """What verl's worker gives a loss: its configuration, model output, 16 rows, and what is passed."""
    config = actor_config(case, use_kl_loss=False)
    model_output, data = ragged_batch(torch.float64).micro_batch(list(range(16)), dp_size=1)
    log_prob = ragged_batch(torch.float64).old_log_prob
    inputs = dict.fromkeys(("rollout_log_prob", "ref_log_prob"), log_prob)
    return config, model_output, data, {"groups": at_first_update(16, config.rollout_n), "inputs": inputs}


def test_gvpo_is_the_same_with_importance_weights() -> None:
    gvpo = next(case for case in OUR_CASES if case.name == "gvpo")
    config, model_output, data, passed = whole_batch(gvpo)
    with passing(**passed):
        plain, _ = ppo_loss(config, model_output, data)
        data["rollout_is_weights"] = data["old_log_probs"].exp()
        weighted, _ = ppo_loss(config, model_output, data)
    assert weighted.item() == plain.item()


@pytest.mark.parametrize("case", OUR_CASES, ids=lambda case: case.name)
def test_distillation_is_added_to_the_loss(case: Case) -> None:
    """verl's loss of a training that distils is ours, and its own times a coefficient."""
    config, model_output, data, passed = whole_batch(case)
    data["teacher_logprobs"] = torch.nested.as_nested_tensor(
        [(row + 0.5).unsqueeze(-1) for row in model_output["log_probs"].unbind()], layout=torch.jagged
    )
    options = {"loss_mode": "k3", "use_policy_gradient": False, "distillation_loss_coef": 0.25}
    distillation = DistillationConfig(distillation_loss=DistillationLossConfig(**options))
    with passing(**passed):
        ours, _ = ppo_loss(config, model_output, data)
        ours = ours.item()  # verl adds to it in place
        whole, _ = distillation_ppo_loss(config, distillation, model_output=model_output, data=data)
    added, _ = distillation_loss(config, distillation, model_output, data)
    assert added.item() > 0
    assert whole.item() == pytest.approx(ours + 0.25 * added.item(), rel=1e-12)


def test_verls_loss_of_a_teachers_top_tokens_reaches_the_logits() -> None:
    """verl's engines first call the loss with the student's logits alone, for what is kept of them."""
    kept = {"topk_log_probs": torch.ones(1)}

    def loss(config: object, *, student_logits: str, data: str) -> dict[str, torch.Tensor]:
        assert (student_logits, data) == ("logits", "rows")
        return kept

    actor = GroupTrainingWorker.__new__(GroupTrainingWorker)
    actor.set_loss_fn(functools.partial(loss, config=actor_config(OUR_CASES[0], use_kl_loss=False)))
    assert actor.loss_fn(student_logits="logits", data="rows") is kept
